"""What decides a run is frozen once; manifests follow each other and the highest counts."""

from typing import Any

import pytest

from tasks.errors import CorruptPart, KeyTaken, RequestMismatch
from tasks.prompts.record import canonical_sha256
from tasks.storage.layout import manifest_key, plan_key, request_key
from tasks.storage.manifest import next_revision, read_latest, write_manifest
from tasks.storage.record import Manifest
from tasks.storage.request import freeze_json, freeze_request, hash_json
from tasks.storage.store import ArtifactStore

ASKED: dict[str, Any] = {
    "model": "m",
    "sampling": {"temperature": 1.0, "top_p": 0.95},
    "sources": {"code": {"quota": 10}},
    "languages": ["en", "de"],
}


def make_manifest(revision: int, **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "revision": revision,
        "created_at": "2025-01-01T00:00:00Z",
        "plan_sha": "ab",
        "plan": {},
        "parts": (),
        "supersedes": {},
        "samples": (),
        "shards": (),
        "counts": {},
        "composition": {},
        "report_key": None,
        "versions": {},
    }
    return Manifest(**{**fields, **changes})


def test_the_first_request_is_frozen_with_what_it_resolved_to(store: ArtifactStore) -> None:
    first = freeze_request(store, ASKED, lambda: {"code": "commit-1"})
    again = freeze_request(store, dict(reversed(ASKED.items())), _never)
    assert again == first
    assert again.resolved == {"code": "commit-1"}
    assert [stat.key for stat in store.list()] == [request_key()]


def test_another_request_is_refused_with_every_differing_field(store: ArtifactStore) -> None:
    freeze_request(store, ASKED, dict)
    other = {
        **ASKED,
        "sampling": {"temperature": 0.7, "top_p": 0.95, "top_k": 20},
        "sources": {},
        "languages": ["en"],
    }
    with pytest.raises(RequestMismatch) as caught:
        freeze_request(store, other, _never)
    assert caught.value.differences == (
        'languages: ["en","de"] there, ["en"] asked now',
        "sampling.temperature: 1.0 there, 0.7 asked now",
        "sampling.top_k: nothing there, 20 asked now",
        'sources.code: {"quota":10} there, nothing asked now',
    )
    assert "sampling.temperature" in str(caught.value)
    assert freeze_request(store, ASKED, _never).asked == ASKED


def test_of_two_first_writers_the_loser_takes_the_winners_resolution(store: ArtifactStore) -> None:
    def resolve_late() -> dict[str, Any]:
        freeze_request(store, ASKED, lambda: {"code": "the winner's"})
        return {"code": "the loser's"}

    assert freeze_request(store, ASKED, resolve_late).resolved == {"code": "the winner's"}


def test_a_loser_that_asked_for_something_else_is_refused(store: ArtifactStore) -> None:
    def resolve_late() -> dict[str, Any]:
        freeze_request(store, {**ASKED, "model": "winner"}, dict)
        return {}

    with pytest.raises(RequestMismatch, match="another request"):
        freeze_request(store, ASKED, resolve_late)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"asked": {}}', b"\xff"])
def test_a_damaged_request_is_never_taken_for_ours(store: ArtifactStore, damage: bytes) -> None:
    store.create(request_key(), damage)
    with pytest.raises(CorruptPart):
        freeze_request(store, ASKED, dict)
    assert store.get(request_key()) == damage


def test_a_plan_is_frozen_likewise(store: ArtifactStore) -> None:
    plan = {"chunks": [{"id": 0, "n_prompts": 2}], "languages": ("en",)}
    stored = freeze_json(store, plan_key(), plan, "plan")
    assert stored == {"chunks": [{"id": 0, "n_prompts": 2}], "languages": ["en"]}
    assert freeze_json(store, plan_key(), plan, "plan") == stored
    with pytest.raises(RequestMismatch, match="another plan") as caught:
        freeze_json(store, plan_key(), {**plan, "chunks": [{"id": 0, "n_prompts": 3}]}, "plan")
    assert caught.value.differences == ("chunks.0.n_prompts: 2 there, 3 asked now",)


def test_hashes_agree_with_the_plans_own() -> None:
    value = {"b": [1, {"z": None, "a": "é"}], "a": 1.5}
    assert hash_json(value) == canonical_sha256(value)


def test_manifests_follow_each_other_and_the_highest_valid_one_counts(
    store: ArtifactStore,
) -> None:
    assert read_latest(store) is None
    assert next_revision(store) == 0
    assert write_manifest(store, make_manifest(0)) == manifest_key(0)
    write_manifest(store, make_manifest(1, counts={"n_rows": 2}))
    store.create(manifest_key(2), b"damaged")
    store.create(manifest_key(3), make_manifest(1).model_dump_json().encode())
    latest = read_latest(store)
    assert latest is not None
    assert (latest.revision, latest.counts) == (1, {"n_rows": 2})
    assert next_revision(store) == 4


def test_a_manifest_is_never_written_over(store: ArtifactStore) -> None:
    write_manifest(store, make_manifest(0))
    write_manifest(store, make_manifest(0))
    with pytest.raises(KeyTaken):
        write_manifest(store, make_manifest(0, counts={"n_rows": 1}))


def _never() -> dict[str, Any]:
    raise AssertionError("a frozen request is not resolved again")
