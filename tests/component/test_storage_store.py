"""One suite for both stores: an object is written once, whole, and never over another."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import SecretStr

from tasks.errors import (
    BucketMissing,
    CredentialsRefused,
    KeyTaken,
    OverwritePossible,
    ProtectedPrefix,
    StoreError,
    StoreUnreachable,
)
from tasks.storage.probe import check_create_only
from tasks.storage.store import ArtifactStore, open_store
from tests.support.s3 import S3Server, find_free_ports

N_WRITERS = 16


def test_an_object_is_read_back_whole_by_range_and_as_a_stream(store: ArtifactStore) -> None:
    data = bytes(range(256)) * 9000
    stat = store.create("data/one", data)
    assert (stat.key, stat.n_bytes) == ("data/one", len(data))
    assert store.get("data/one") == data
    assert store.get_range("data/one", 250, 20) == data[250:270]
    assert store.get_range("data/one", len(data) - 5, 20) == data[-5:]
    assert store.get_range("data/one", len(data), 20) == b""
    with store.open("data/one") as stream:
        assert stream.read(10) + stream.read() == data
    head = store.head("data/one")
    assert head is not None
    assert head.n_bytes == len(data)


def test_an_empty_object_is_an_object(store: ArtifactStore) -> None:
    store.create("empty", b"")
    assert store.get("empty") == b""
    assert store.get_range("empty", 0, 10) == b""


def test_a_file_is_stored_as_it_is(store: ArtifactStore, tmp_path: Path) -> None:
    path = tmp_path / "local"
    path.write_bytes(b"rows " * 600_000)
    stat = store.create_file("prompts/file", path)
    assert store.get("prompts/file") == path.read_bytes()
    assert store.create_file("prompts/file", path) == stat


def test_the_same_bytes_again_are_success_and_other_bytes_are_refused(
    store: ArtifactStore,
) -> None:
    first = store.create("key", b"first")
    assert store.create("key", b"first") == first
    for other in (b"other", b"longer than the first", b""):
        with pytest.raises(KeyTaken) as caught:
            store.create("key", other)
        assert caught.value.where == f"{store.uri}/key"
    assert store.get("key") == b"first"


def test_of_sixteen_writers_exactly_one_wins_each_key(store: ArtifactStore) -> None:
    keys = [f"race/{i}" for i in range(4)]
    barrier = threading.Barrier(N_WRITERS)

    def write(writer: int) -> list[str]:
        won = []
        for key in keys:
            barrier.wait(timeout=60)
            try:
                store.create(key, f"writer {writer} ".encode() * 2000)
            except KeyTaken:
                continue
            won.append(key)
        return won

    with ThreadPoolExecutor(N_WRITERS) as pool:
        wins = list(pool.map(write, range(N_WRITERS)))
    assert sorted(key for won in wins for key in won) == keys
    for writer, won in enumerate(wins):
        for key in won:
            assert store.get(key) == f"writer {writer} ".encode() * 2000


def test_what_is_not_there_is_said_to_be_missing(store: ArtifactStore) -> None:
    assert store.head("nothing") is None
    assert list(store.list()) == []
    for read in (store.get, store.open, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(FileNotFoundError, match=r"^nothing/here$"):
            read("nothing/here")


def test_keys_are_listed_in_order_and_by_any_beginning(store: ArtifactStore) -> None:
    keys = ["a", "a-b/c", "a.b", "data/part-000001.jsonl.zst", "data/part-000001.r1.jsonl.zst",
            "data/part-000010.jsonl.zst", "dataset/x"]  # fmt: skip
    for key in reversed(keys):
        store.create(key, key.encode())
    assert [(s.key, s.n_bytes) for s in store.list()] == [(k, len(k)) for k in sorted(keys)]
    assert [s.key for s in store.list("data/")] == keys[3:6]
    assert [s.key for s in store.list("data")] == keys[3:]
    assert [s.key for s in store.list("data/part-000001.")] == keys[3:5]
    assert list(store.list("none/")) == []


def test_a_listing_goes_on_past_one_page(store: ArtifactStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.create(f"many/{i:04d}", b"x"), range(1100)))
    assert [s.key for s in store.list("many/")] == [f"many/{i:04d}" for i in range(1100)]


@pytest.mark.parametrize("key", ["../x", "/x", "a//b", "a/../../x", "a\\b", "", ".hidden"])
def test_no_key_leads_out_of_the_prefix(store: ArtifactStore, key: str) -> None:
    for use in (store.get, store.open, store.head, lambda k: store.create(k, b"x")):
        with pytest.raises(ValueError, match="is no key"):
            use(key)


def test_the_probe_passes_on_a_store_that_keeps_its_promise(store: ArtifactStore) -> None:
    check_create_only(store)
    check_create_only(store)
    assert [s.key for s in store.list()] == ["_run/create-only-probe", "_run/create-only-race"]


async def test_blocking_calls_run_beside_the_event_loop(store: ArtifactStore) -> None:
    await store.run(store.create, "key", b"data")
    assert await store.run(store.get, "key") == b"data"
    name = await store.run(lambda: threading.current_thread().name)
    assert name.startswith("store")


def test_a_server_that_overwrites_is_refused(overwriting_s3: S3Server) -> None:
    store = open_store(overwriting_s3.config("run"), overwriting_s3.credentials)
    with pytest.raises(OverwritePossible) as caught:
        check_create_only(store)
    assert "If-None-Match" in caught.value.remedy


def test_an_object_without_our_metadata_is_compared_by_its_bytes(seaweedfs: S3Server) -> None:
    store = open_store(seaweedfs.config("foreign/run"), seaweedfs.credentials)
    seaweedfs.client().put_object(Bucket=seaweedfs.bucket, Key="foreign/run/key", Body=b"bytes")
    store.create("key", b"bytes")
    with pytest.raises(KeyTaken):
        store.create("key", b"bites")


def test_a_missing_bucket_is_named_with_the_remedy(seaweedfs: S3Server) -> None:
    config = dataclasses.replace(seaweedfs, bucket="no-such-bucket").config("run")
    with pytest.raises(BucketMissing) as caught:
        open_store(config, seaweedfs.credentials)
    assert "no-such-bucket" in str(caught.value)
    assert seaweedfs.endpoint_url in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "wrong", [{"access_key_id": "nobody"}, {"secret_access_key": SecretStr("canary-wrong-secret")}]
)
def test_wrong_keys_are_refused_and_not_shown(
    seaweedfs: S3Server, wrong: dict[str, SecretStr | str]
) -> None:
    credentials = dataclasses.replace(seaweedfs.credentials, **wrong)  # type: ignore[arg-type]
    with pytest.raises(CredentialsRefused) as caught:
        open_store(seaweedfs.config("run"), credentials)
    assert seaweedfs.endpoint_url in str(caught.value)
    assert "canary-wrong-secret" not in f"{caught.value!r} {credentials!r}"


def test_no_keys_at_all_are_asked_for(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CredentialsRefused):
        open_store(seaweedfs.config("run"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweedfs.secret_key)
    assert list(open_store(seaweedfs.config("by-environment")).list()) == []


def test_a_store_that_does_not_answer_is_named(seaweedfs: S3Server) -> None:
    (port,) = find_free_ports(1)
    config = seaweedfs.config("run", endpoint_url=f"http://127.0.0.1:{port}")
    with pytest.raises(StoreUnreachable) as caught:
        open_store(config, seaweedfs.credentials)
    assert str(port) in caught.value.where
    with pytest.raises(StoreError, match="is no address"):
        open_store(seaweedfs.config("run", endpoint_url="no-address"), seaweedfs.credentials)


def test_the_earlier_dataset_cannot_be_opened_for_writing(seaweedfs: S3Server) -> None:
    for prefix in ("completions", "completions/", "completions/new", ""):
        with pytest.raises(ProtectedPrefix):
            open_store(seaweedfs.config(prefix), seaweedfs.credentials)
    open_store(seaweedfs.config("completionsX"), seaweedfs.credentials)


def test_folders_are_named_without_what_is_in_them(store: ArtifactStore) -> None:
    assert list(store.list_folders()) == []
    for key in ("b/one", "b/deep/er/two", "a@1/three", "file"):
        store.create(key, b"data")
    for number in range(3):
        store.create(f"many-{number}/x", b"data")
    assert sorted(store.list_folders()) == ["a@1", "b", "many-0", "many-1", "many-2"]
