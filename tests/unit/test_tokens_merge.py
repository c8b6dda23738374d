"""Merging keeps every row once, in an order of seed and ids, whatever types the base uses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import AccountingError, CorruptPart, KeyTaken
from tasks.tokens import shuffle
from tasks.tokens.config import BaseDatasetConfig, MergeConfig
from tasks.tokens.intake import Intake
from tasks.tokens.record import SamplesReceipt, name_conversation
from tasks.tokens.rows import SCHEMA, read_strings
from tests.support.generation import GenerationRun
from tests.support.merging import (
    MERGE,
    assemble_all,
    expect_ids,
    invent_rows,
    merge,
    plan_merge,
    read,
    write_base,
)


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    return plan_merge(tmp_path)


@pytest.fixture
def samples(run: GenerationRun) -> list[SamplesReceipt]:
    return assemble_all(run)


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        (pa.list_(pa.int64()), pa.list_(pa.int64())),
        (pa.large_list(pa.int64()), pa.large_list(pa.int8())),
        (pa.large_list(pa.int32()), pa.list_(pa.bool_())),
        (pa.list_(pa.uint32()), pa.list_(pa.uint8())),
    ],
)
def test_a_base_of_other_arrow_types_merges_into_the_canonical_ones(
    run: GenerationRun,
    samples: list[SamplesReceipt],
    tmp_path: Path,
    ids: pa.DataType,
    mask: pa.DataType,
) -> None:
    rows = invent_rows()
    receipt = merge(run, samples, write_base(tmp_path, rows, ids=ids, mask=mask))
    merged = {sample.id: sample for sample in read(run, receipt)}
    assert merged.keys() == expect_ids(run) | {row["id"] for row in rows}
    for row in rows:
        assert merged[row["id"]].input_ids.tolist() == row["input_ids"]
        assert merged[row["id"]].loss_mask.tolist() == row["loss_mask"]
        assert merged[row["id"]].domain == row["topic"]
    for shard in receipt.shards:
        path = tmp_path / "store" / shard.key
        assert pq.read_schema(path).equals(SCHEMA)
        assert pq.read_metadata(path).num_rows == shard.n_rows <= MERGE.rows_per_shard
    assert receipt.counts["n_rows"] == len(merged) == 21
    assert (receipt.counts["n_base"], receipt.counts["n_new"]) == (9, 12)
    assert receipt.counts["n_shards"] == len(receipt.shards) == 3


def test_a_base_of_json_lines_merges_as_its_parquet_twin(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    folder = tmp_path / "base"
    folder.mkdir()
    write_base(folder, invent_rows(4), name="a.jsonl")
    write_base(folder, invent_rows(9)[4:], name="b.parquet")
    (folder / "README.md").write_text("not data")
    mixed = merge(run, samples, BaseDatasetConfig(path=str(folder), domain="topic"))
    whole = merge(run, samples, write_base(tmp_path, invent_rows()), revision=1)
    assert [s.id for s in read(run, mixed)] == [s.id for s in read(run, whole)]
    assert mixed.composition == whole.composition


def test_the_order_depends_on_seed_and_ids_only(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    base = write_base(tmp_path, invent_rows())
    first = merge(run, samples, base)
    again = merge(run, samples[::-1], base, revision=1)
    other = merge(run, samples, base, revision=2, settings=MergeConfig(rows_per_shard=7, seed=4))
    assert [s.sha256 for s in first.shards] == [s.sha256 for s in again.shards]
    orders = [[sample.id for sample in read(run, receipt)] for receipt in (first, other)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != sorted(orders[0])


def test_many_buckets_give_the_order_of_one(
    run: GenerationRun,
    samples: list[SamplesReceipt],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = write_base(tmp_path, invent_rows())
    one = [sample.id for sample in read(run, merge(run, samples, base))]
    monkeypatch.setattr(shuffle, "_BUCKET_TOKENS", 64)
    monkeypatch.setattr(shuffle, "_SCATTER_TOKENS", 100)
    monkeypatch.setattr(shuffle, "ROW_GROUP_TOKENS", 50)
    many = merge(run, samples, base, revision=1)
    assert [sample.id for sample in read(run, many)] == one
    assert sum(shard.n_rows for shard in many.shards) == 21


def test_without_a_base_the_new_samples_are_the_dataset(
    run: GenerationRun, samples: list[SamplesReceipt]
) -> None:
    receipt = merge(run, samples)
    assert {sample.id for sample in read(run, receipt)} == expect_ids(run)
    assert receipt.base_composition.total.n_rows == 0
    assert receipt.composition.total.n_supervised_tokens == sum(
        r.n_supervised_tokens for r in samples
    )


def test_the_composition_tells_before_and_after(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    rows = invent_rows()
    receipt = merge(run, samples, write_base(tmp_path, rows))
    before, after = receipt.base_composition, receipt.composition
    assert {name: tally.n_rows for name, tally in before.by_domain.items()} == {
        "code": 3,
        "maths": 6,
    }
    assert {name: tally.n_rows for name, tally in after.by_domain.items()} == {
        "code": 3,
        "general": 12,
        "maths": 6,
    }
    assert before.total.n_supervised_tokens == sum(sum(row["loss_mask"]) for row in rows)
    assert {name: tally.n_rows for name, tally in after.by_source.items()} == {
        "base": 9,
        "invented": 12,
    }
    assert sum(after.lengths) == 21


def test_a_chunk_without_samples_stops_the_merge(
    run: GenerationRun, samples: list[SamplesReceipt]
) -> None:
    for incomplete in (samples[:1], [samples[0], samples[0]]):
        with pytest.raises(AccountingError, match=r"1 of 2 chunks .* chunk 1"):
            merge(run, incomplete)


def test_the_same_samples_twice_stop_the_merge(
    run: GenerationRun, samples: list[SamplesReceipt]
) -> None:
    with pytest.raises(AccountingError, match="two new samples have the id"):
        merge(run, [*samples, samples[0]])


def test_a_samples_part_that_is_not_its_receipt_stops_the_merge(
    run: GenerationRun, samples: list[SamplesReceipt]
) -> None:
    lost = samples[0].model_copy(update={"n_samples": 4})
    with pytest.raises(AccountingError, match="receipt says 4"):
        merge(run, [lost, samples[1]])
    other = samples[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(CorruptPart):
        merge(run, [other, samples[1]])


def test_a_revision_is_never_written_over(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    first = merge(run, samples)
    assert merge(run, samples) == first, "the same dataset again is the same objects"
    with pytest.raises(KeyTaken):
        merge(run, samples, write_base(tmp_path, invent_rows()))


def test_of_what_a_retry_stands_in_for_the_retokenised_are_counted_too(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    (whole,) = pq.read_table(tmp_path / "store" / samples[0].key).to_batches()
    n_rows = whole.num_rows
    kinds = pa.array(["retokenized", "retokenized", *["chat"] * (n_rows - 2)], pa.string())
    marked = whole.set_column(whole.schema.get_field_index("token_source"), "token_source", kinds)
    names = [name_conversation(row_id) for row_id in read_strings(marked, "id")]
    (tmp_path / "scratch").mkdir()
    with shuffle.Shuffle(tmp_path / "scratch", 3, 1000) as shuffled:
        intake = Intake(shuffled, MERGE, copies_base=True)
        intake.add_samples(marked, {names[0], names[-1]})
        assert (intake.n_superseded, intake.n_superseded_retokenized) == (2, 1)
        intake.add_samples(marked, ())
        assert (intake.n_superseded, intake.n_superseded_retokenized) == (2, 1)
