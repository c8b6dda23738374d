"""Verification finds what is missing, damaged, swapped, miscounted or too much, by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.storage.config import StoreConfig
from tasks.storage.fault import find_damaged_shard
from tasks.storage.layout import data_key, shard_key, tokens_key
from tasks.storage.manifest import write_manifest
from tasks.storage.part import publish_part
from tasks.storage.record import Manifest
from tasks.storage.request import hash_json
from tasks.storage.store import ArtifactStore, open_store
from tasks.storage.verify import Verdict, verify_dataset
from tests.support.parts import list_conversations, write_part

N_ROWS = 20
PLAN = {"n_samples": 1, "chunks": [{"id": i, "n_prompts": N_ROWS} for i in range(2)]}
SHARD = shard_key(0, 0)


class Dataset:
    """A whole tiny dataset, held as objects and manifest fields until it is published."""

    def __init__(self, folder: Path) -> None:
        draft = open_store(StoreConfig(uri=f"file://{folder}/draft"))
        parts, samples = [], []
        for chunk_id, statuses in enumerate((["failed", "truncated"], ["partial"])):
            path = folder / f"part-{chunk_id}"
            write_part(
                path,
                chunk_id=chunk_id,
                conversations=list_conversations(N_ROWS),
                plan_sha=hash_json(PLAN),
                statuses=statuses,
            )
            parts.append(publish_part(draft, data_key(chunk_id), path, list_conversations(N_ROWS)))
            key = tokens_key("abcdef0123", parts[-1].key, parts[-1].sha256)
            stat = draft.create(key, f"samples of chunk {chunk_id}".encode())
            samples.append(
                {
                    "data_key": parts[-1].key,
                    "data_sha256": parts[-1].sha256,
                    "key": key,
                    "sha256": stat.sha256,
                    "n_bytes": stat.n_bytes,
                    "n_generations": N_ROWS,
                    "n_samples": N_ROWS - 2,
                    "n_dropped": {"too_long": 2},
                    "n_tokens": 100,
                }
            )
        shard = draft.create(SHARD, make_parquet(36))
        self.objects = {stat.key: draft.get(stat.key) for stat in draft.list()}
        self.fields: dict[str, Any] = {
            "revision": 0,
            "created_at": "2025-01-01T00:00:00Z",
            "plan_sha": hash_json(PLAN),
            "plan": PLAN,
            "parts": parts,
            "supersedes": {},
            "samples": samples,
            "shards": [
                {"key": SHARD, "sha256": shard.sha256, "n_bytes": shard.n_bytes, "n_rows": 36}
            ],
            "counts": {
                "n_conversations": 40,
                "n_completed": 37,
                "n_truncated": 1,
                "n_partial": 1,
                "n_failed": 1,
                "n_dataset_rows": 36,
            },
            "composition": {},
            "report_key": None,
            "versions": {},
        }

    def publish(self, store: ArtifactStore) -> None:
        """Write every object, then the manifest."""
        for key, data in self.objects.items():
            store.create(key, data)
        write_manifest(store, Manifest.model_validate(self.fields))

    def verify(self, store: ArtifactStore, read_data_share: float = 1.0) -> Verdict:
        """Publish and verify."""
        self.publish(store)
        return verify_dataset(store, read_data_share=read_data_share)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


def make_parquet(n_rows: int, value: int = 0) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": [value] * n_rows}), sink)
    return sink.getvalue()


def flip(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


def test_a_whole_dataset_has_no_problem(store: ArtifactStore, dataset: Dataset) -> None:
    verdict = dataset.verify(store)
    assert verdict.ok, verdict.problems
    assert verdict.n_objects == 5
    assert verdict.counts == {
        "n_parts": 2,
        "n_rows": 40,
        "n_sample_parts": 2,
        "n_samples": 36,
        "n_shards": 1,
        "n_shard_rows": 36,
        "n_read_in_full": 5,
    }


def test_a_run_without_a_manifest_is_not_finished(store: ArtifactStore) -> None:
    verdict = verify_dataset(store)
    assert not verdict.ok
    assert "not finished" in verdict.problems[0]


@pytest.mark.parametrize("kind", ["data/", "tokens/", "dataset/"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_a_missing_or_damaged_object_is_named(
    store: ArtifactStore, dataset: Dataset, kind: str, damage: str
) -> None:
    key = next(k for k in sorted(dataset.objects) if k.startswith(kind))
    data = dataset.objects.pop(key)
    if damage == "truncated":
        dataset.objects[key] = data[:-1]
    if damage == "flipped":
        dataset.objects[key] = data.replace(b"chunk", b"chunc") if kind == "tokens/" else flip(data)
    verdict = dataset.verify(store)
    assert not verdict.ok
    assert len(verdict.problems) == 1
    assert verdict.problems[0].startswith(f"{key}: ")
    assert "; run the same request again" in verdict.problems[0]


@pytest.mark.parametrize("damage", [flip, lambda data: data[:-1], lambda data: None])
def test_a_shard_that_cannot_be_trained_on_is_found(
    store: ArtifactStore, dataset: Dataset, damage: Callable[[bytes], bytes | None]
) -> None:
    shards = Manifest.model_validate(dataset.fields).shards
    sound, damaged = dataset.objects[SHARD], damage(dataset.objects[SHARD])
    if damaged is not None:
        store.create(SHARD, damaged)
    assert find_damaged_shard(store, shards) == SHARD
    if damaged is None:
        store.create(SHARD, sound)
        assert find_damaged_shard(store, shards) is None


def test_swapped_parts_are_found(store: ArtifactStore, dataset: Dataset) -> None:
    one, two = data_key(0), data_key(1)
    dataset.objects[one], dataset.objects[two] = dataset.objects[two], dataset.objects[one]
    verdict = dataset.verify(store)
    assert {problem.partition(":")[0] for problem in verdict.problems} == {one, two}


def test_a_valid_part_that_is_not_the_manifests_is_found(
    store: ArtifactStore, dataset: Dataset, tmp_path: Path
) -> None:
    write_part(
        tmp_path / "other",
        chunk_id=1,
        conversations=list_conversations(N_ROWS),
        plan_sha=hash_json(PLAN),
        statuses=["partial"],
        text="un answer",
    )
    dataset.objects[data_key(1)] = (tmp_path / "other").read_bytes()
    verdict = dataset.verify(store)
    assert [problem.partition(":")[0] for problem in verdict.problems] == [data_key(1)]


def test_rows_that_end_otherwise_than_the_footer_says_are_found(
    store: ArtifactStore, dataset: Dataset
) -> None:
    part = dataset.fields["parts"][1]
    footer = part.footer.model_copy(update={"n_completed": 20, "n_partial": 0})
    dataset.fields["parts"][1] = part.model_copy(update={"footer": footer})
    dataset.fields["counts"] |= {"n_completed": 38, "n_partial": 0}
    verdict = dataset.verify(store)
    assert [problem.partition(":")[0] for problem in verdict.problems] == [data_key(1)]


def test_a_shard_with_other_rows_is_found(store: ArtifactStore, dataset: Dataset) -> None:
    dataset.fields["shards"][0]["n_rows"] = 35
    dataset.fields["counts"]["n_dataset_rows"] = 35
    verdict = dataset.verify(store)
    assert verdict.problems == (
        f"{SHARD}: it has 36 rows instead of 35; "
        "run the same request again (or `draftmill repair`): it is made anew from the data parts",
    )


def test_what_the_manifest_does_not_know_is_named(store: ArtifactStore, dataset: Dataset) -> None:
    dataset.objects[data_key(1, 1)] = dataset.objects[data_key(1)]
    dataset.objects[shard_key(0, 1)] = make_parquet(1)
    verdict = dataset.verify(store)
    assert {problem.partition(":")[0] for problem in verdict.problems} == {
        data_key(1, 1),
        shard_key(0, 1),
    }


def test_a_superseded_part_may_stay_damaged(store: ArtifactStore, dataset: Dataset) -> None:
    part = dataset.fields["parts"][1]
    dataset.objects[data_key(1, 1)] = dataset.objects[data_key(1)]
    dataset.objects[data_key(1)] = b"damaged"
    dataset.fields["parts"][1] = part.model_copy(update={"key": data_key(1, 1)})
    dataset.fields["supersedes"] = {data_key(1): data_key(1, 1)}
    dataset.fields["samples"][1]["data_key"] = data_key(1, 1)
    verdict = dataset.verify(store)
    assert verdict.ok, verdict.problems


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("counts", {"n_conversations": 40, "n_completed": 37, "n_truncated": 1, "n_partial": 1,
                    "n_dataset_rows": 36}, "n_failed is None"),
        ("counts", {"n_conversations": 41, "n_completed": 38, "n_truncated": 1, "n_partial": 1,
                    "n_failed": 1, "n_dataset_rows": 36}, "n_conversations is 41"),
        ("counts", {"n_conversations": 40, "n_completed": 37, "n_truncated": 1, "n_partial": 1,
                    "n_failed": 1, "n_dataset_rows": 35}, "n_dataset_rows is 35"),
        ("plan", {"n_samples": 2, "chunks": PLAN["chunks"]}, "chunk 0"),
        ("plan_sha", "0" * 64, "the plan's hash"),
    ],
)  # fmt: skip
def test_accounts_that_do_not_add_up_are_named(
    store: ArtifactStore, dataset: Dataset, field: str, value: Any, named: str
) -> None:
    dataset.fields[field] = value
    verdict = dataset.verify(store)
    assert any(named in problem for problem in verdict.problems), verdict.problems


def test_samples_of_fewer_generations_than_the_part_has_are_named(
    store: ArtifactStore, dataset: Dataset
) -> None:
    dataset.fields["samples"][0] |= {"n_generations": N_ROWS - 1, "n_samples": N_ROWS - 3}
    (problem,) = dataset.verify(store).problems
    assert problem.startswith(f"{dataset.fields['samples'][0]['key']}: it was made from 19")


def test_a_chunk_without_a_part_and_a_part_without_samples_are_named(
    store: ArtifactStore, dataset: Dataset
) -> None:
    del dataset.fields["parts"][1]
    del dataset.fields["samples"][0]
    problems = "\n".join(dataset.verify(store).problems)
    assert "chunk 1: the plan asks for 20 conversations and the parts hold 0" in problems
    assert f"{data_key(0)}: no samples were made from it" in problems
    assert f"{data_key(1)}: the manifest neither lists nor supersedes it" in problems


def test_a_share_of_the_objects_is_read_and_the_same_each_time(
    store: ArtifactStore, dataset: Dataset
) -> None:
    dataset.publish(store)
    shares = [verify_dataset(store, read_data_share=s) for s in (0.0, 0.5, 0.5, 1.0)]
    n_read = [verdict.counts.get("n_read_in_full", 0) for verdict in shares]
    assert all(verdict.ok for verdict in shares)
    assert (n_read[0], n_read[3]) == (0, 5)
    assert 0 < n_read[1] == n_read[2] < 5


def test_with_nothing_read_sizes_and_ends_still_tell(
    store: ArtifactStore, dataset: Dataset
) -> None:
    data = dataset.objects[data_key(0)]
    dataset.objects[data_key(0)] = data[:-1] + bytes([data[-1] ^ 1])
    dataset.objects[SHARD] = dataset.objects[SHARD][:-1]
    verdict = dataset.verify(store, read_data_share=0.0)
    assert {problem.partition(":")[0] for problem in verdict.problems} == {data_key(0), SHARD}


def test_an_older_manifest_that_is_damaged_is_noted_and_is_no_fault_of_the_dataset(
    store: ArtifactStore, dataset: Dataset
) -> None:
    dataset.fields["revision"] = 1
    dataset.objects["_manifest/r0000.json"] = b'{"cut off'
    dataset.publish(store)
    verdict = verify_dataset(store)
    assert verdict.ok, verdict.problems
    (note,) = verdict.notes
    assert note.startswith("_manifest/r0000.json: an older manifest is damaged")
