"""A server that overwrites is refused; who insists writes to keys that no two runs share."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.errors import KeyTaken, OverwritePossible
from tasks.storage.layout import data_key
from tasks.storage.manifest import read_latest, write_manifest
from tasks.storage.part import find_part, iter_rows, publish_part
from tasks.storage.probe import require_create_only
from tasks.storage.record import Manifest, PartReceipt
from tasks.storage.request import freeze_request
from tasks.storage.store import ArtifactStore, open_store
from tasks.storage.unique import UniqueKeyStore
from tests.support.parts import INPUT_SHA, PLAN_SHA, list_conversations, write_part
from tests.support.s3 import S3Server

CONVERSATIONS = list_conversations(8)


@pytest.fixture(autouse=True)
def _settle_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.storage.unique._SETTLE_SECONDS", 1.1)


def open_unique(server: S3Server, prefix: str) -> ArtifactStore:
    config = server.config(prefix, run_unique_keys=True)
    return require_create_only(open_store(config, server.credentials), run_unique_keys=True)


def list_keys(server: S3Server, prefix: str) -> list[str]:
    reply = server.client().list_objects_v2(Bucket=server.bucket, Prefix=f"{prefix}/")
    return sorted(entry["Key"].removeprefix(f"{prefix}/") for entry in reply["Contents"])


def make_manifest(parts: list[PartReceipt]) -> Manifest:
    return Manifest(
        revision=0,
        created_at="2025-01-01T00:00:00Z",
        plan_sha=PLAN_SHA,
        plan={},
        parts=tuple(parts),
        supersedes={},
        samples=(),
        shards=(),
        counts={},
        composition={},
        report_key=None,
        versions={},
    )


def test_without_the_opt_in_the_server_is_refused(overwriting_s3: S3Server) -> None:
    store = open_store(overwriting_s3.config("refused/run"), overwriting_s3.credentials)
    with pytest.raises(OverwritePossible) as caught:
        require_create_only(store, run_unique_keys=False)
    assert "run_unique_keys" in caught.value.remedy


def test_the_opt_in_changes_nothing_where_the_promise_is_kept(seaweedfs: S3Server) -> None:
    store = open_unique(seaweedfs, "promise-kept/run")
    assert not isinstance(store, UniqueKeyStore)


@pytest.mark.real
def test_two_runs_at_once_on_a_server_that_overwrites_end_in_one_dataset(
    overwriting_s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    prefix = "two-at-once/run"
    barrier = threading.Barrier(2)

    def run(number: int) -> tuple[str, Manifest]:
        store = open_unique(overwriting_s3, prefix)
        path = tmp_path / f"part-{number}"
        write_part(path, conversations=CONVERSATIONS, text=f"answers of run {number}")
        barrier.wait(timeout=60)
        frozen = freeze_request(store, {"x": 1}, lambda: {"resolved by": number})
        receipt = publish_part(store, data_key(1), path, CONVERSATIONS)
        manifest = make_manifest([receipt])
        try:
            write_manifest(store, manifest)
        except KeyTaken:
            there = read_latest(store)
            assert there is not None
            manifest = there
        store.close()
        return str(frozen.resolved), manifest

    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(2) as pool:
        (resolved, first), (also_resolved, second) = pool.map(run, range(2))
    assert any("the store overwrites" in record.message for record in caplog.records)
    assert resolved == also_resolved, "one request was frozen, whoever came first"
    assert first.parts == second.parts

    # A third one, later and without the opt-in, reads what the manifest means.
    store = open_store(overwriting_s3.config(prefix), overwriting_s3.credentials)
    manifest = read_latest(store)
    assert manifest is not None
    assert manifest.parts == first.parts
    (part,) = manifest.parts
    assert find_part(store, 1, PLAN_SHA, INPUT_SHA) == part
    assert len(list(iter_rows(store, part.key))) == len(CONVERSATIONS)
    assert [stat.key for stat in store.list("data/")] == [data_key(1)]
    keys = [key for key in list_keys(overwriting_s3, prefix) if "create-only" not in key]
    assert all("~" in key for key in keys), keys
    assert manifest.stored_as[part.key] in keys


@pytest.mark.real
def test_what_a_manifest_means_is_read_whatever_stands_beside_it(
    overwriting_s3: S3Server, tmp_path: Path
) -> None:
    prefix = "beside/run"
    store = open_unique(overwriting_s3, prefix)
    freeze_request(store, {"x": 1}, dict)
    write_part(tmp_path / "ours", conversations=CONVERSATIONS, text="ours")
    receipt = publish_part(store, data_key(1), tmp_path / "ours", CONVERSATIONS)
    write_manifest(store, make_manifest([receipt]))
    write_part(tmp_path / "theirs", conversations=CONVERSATIONS, text="theirs")
    overwriting_s3.client().put_object(
        Bucket=overwriting_s3.bucket,
        Key=f"{prefix}/{data_key(1)}~000000000000-0",
        Body=(tmp_path / "theirs").read_bytes(),
    )
    later = open_store(overwriting_s3.config(prefix), overwriting_s3.credentials)
    assert read_latest(later) is not None
    assert b"ours" in next(iter_rows(later, data_key(1)))


def test_it_is_a_store_like_any_other(overwriting_s3: S3Server, tmp_path: Path) -> None:
    store = open_unique(overwriting_s3, "like-any/run")
    assert store.head("data/x") is None
    with pytest.raises(FileNotFoundError):
        store.get("data/x")
    stat = store.create("data/x", b"0123456789")
    assert store.create("data/x", b"0123456789") == stat
    (tmp_path / "file").write_bytes(b"other")
    with pytest.raises(KeyTaken):
        store.create_file("data/x", tmp_path / "file")
    assert store.get_range("data/x", 3, 4) == b"3456"
    with store.open("data/x") as stream:
        assert stream.read() == b"0123456789"
    head = store.head("data/x")
    assert head is not None
    assert (head.key, head.n_bytes) == ("data/x", 10)
    assert [(s.key, s.n_bytes) for s in store.list("data/")] == [("data/x", 10)]
    store.close()
