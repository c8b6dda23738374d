"""A base dataset comes in many forms, is copied or referred to, and is known by its tokenizer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BaseDatasetError
from tasks.tokens.base import check_tokenizer, iter_base
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.export import export_parquet, export_saved, iter_shards
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.rows import iter_batches, iter_rows
from tests.support.generation import GenerationRun, load_template
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
from tests.support.outcomes import ask

DROP = MERGE.model_copy(update={"base_prompts": "drop"})
REFER = MERGE.model_copy(update={"base_rows": "refer"})


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    return plan_merge(tmp_path)


@pytest.fixture
def samples(run: GenerationRun) -> list[SamplesReceipt]:
    return assemble_all(run)


def with_shared_prompts(run: GenerationRun, n: int) -> list[dict[str, Any]]:
    """Invent a base in which the first `n` prompts of the run were answered before."""
    rows = invent_rows()
    for index, prompt in enumerate(run.prompts[0][:n]):
        ids = run.template.render(prompt.messages, None, thinking=True)
        rows[index]["input_ids"] = [*ids, 40, 41]
        rows[index]["loss_mask"] = [0] * len(ids) + [1, 1]
    return rows


def test_a_saved_dataset_merges_and_rows_without_ids_are_numbered(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    first = merge(run, samples)
    export_saved(iter_shards(run.store, first.shards), tmp_path / "saved", rows_per_file=5)
    (tmp_path / "saved" / "cache-123.arrow").write_bytes(b"a map's leftover, no part of it")
    base = BaseDatasetConfig(path=str(tmp_path / "saved"), id=None)
    both = merge(run, samples, base, revision=1)
    rows = {sample.id: sample for sample in read(run, both)}
    assert both.counts["n_base"] == 12
    assert rows.keys() == expect_ids(run) | {f"base-{i:09d}" for i in range(12)}
    for index, sample in enumerate(read(run, first)):
        assert rows[f"base-{index:09d}"].input_ids.tolist() == sample.input_ids.tolist()
        assert rows[f"base-{index:09d}"].loss_mask.tolist() == sample.loss_mask.tolist()


def test_a_saved_dataset_that_is_not_whole_is_refused(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    files = export_saved(iter_shards(run.store, merge(run, samples).shards), saved)
    files[0].unlink()
    with pytest.raises(BaseDatasetError, match="not whole") as told:
        merge(run, samples, BaseDatasetConfig(path=str(saved), id=None), revision=1)
    assert told.value.where == str(files[0])


def test_prompts_of_the_base_are_counted_and_dropped_only_by_policy(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    base = write_base(tmp_path, with_shared_prompts(run, 3))
    kept = merge(run, samples, base)
    assert (kept.counts["n_base_prompts"], kept.counts["n_dropped_prompts"]) == (3, 0)
    assert kept.counts["n_rows"] == 9 + 12
    dropped = merge(run, samples, base, revision=1, settings=DROP)
    assert (dropped.counts["n_base_prompts"], dropped.counts["n_dropped_prompts"]) == (3, 3)
    assert dropped.counts["n_rows"] == 9 + 9 == len(read(run, dropped))
    gone = {f"{prompt.id}#s0#g0" for prompt in run.prompts[0][:3]}
    assert {sample.id for sample in read(run, dropped)} & expect_ids(run) == expect_ids(run) - gone


def test_a_base_that_is_referred_to_is_counted_and_not_copied(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    base = write_base(tmp_path, invent_rows())
    copied = merge(run, samples, base)
    receipt = merge(run, samples, base, revision=1, settings=REFER)
    assert {sample.id for sample in read(run, receipt)} == expect_ids(run)
    assert receipt.counts["n_rows"] == copied.counts["n_rows"] == 21
    assert receipt.composition == copied.composition
    assert receipt.base is not None
    assert receipt.base.n_rows == 9
    assert BaseDatasetConfig.model_validate(receipt.base.dataset) == base
    rows = iter_base(base, run.template, thinking=True, refused=Counter())
    files = export_parquet(run.store, receipt.shards, rows, tmp_path / "out")
    names = [s.id for file in files for batch in iter_batches(file) for s in iter_rows(batch)]
    assert sorted(names) == sorted(sample.id for sample in read(run, copied))


@pytest.mark.parametrize("clash", ["within", "across"])
def test_ids_are_disjoint_where_the_base_is_referred_to_as_well(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path, clash: str
) -> None:
    rows = invent_rows()
    rows[4]["id"] = rows[7]["id"] if clash == "within" else min(expect_ids(run))
    with pytest.raises(BaseDatasetError, match=r"have one id|share an id"):
        merge(run, samples, write_base(tmp_path, rows), settings=REFER)


def encode_rows(texts: list[str]) -> list[dict[str, Any]]:
    template = load_template()
    rows = []
    for index, text in enumerate(texts):
        ids = template.encode(text)
        rows.append({"id": f"b{index}", "input_ids": ids, "loss_mask": [1] * len(ids)})
    return rows


TEXTS = [f"Row {i} tells of rivers, bread and a lighthouse, in that order." for i in range(30)]


def test_a_base_of_the_targets_own_tokenizer_is_taken(tmp_path: Path) -> None:
    base = write_base(tmp_path, encode_rows(TEXTS)).model_copy(update={"domain": None})
    check_tokenizer(base, load_template(), thinking=True)


def test_a_base_of_another_tokenizer_is_refused_with_the_evidence(tmp_path: Path) -> None:
    """All its ids lie within the vocabulary: only what they say tells."""
    rows = encode_rows(TEXTS)
    for row in rows:
        row["input_ids"] = [(token * 7 + 1300) % 4000 for token in row["input_ids"]]
    base = write_base(tmp_path, rows).model_copy(update={"domain": None})
    with pytest.raises(BaseDatasetError, match="another tokenizer") as told:
        check_tokenizer(base, load_template(), thinking=True)
    assert "% of" in told.value.what
    assert "row 'b0' reads" in told.value.what


CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "t0",
        "messages": [
            *ask("1+1?"),
            {"role": "assistant", "content": "Two.", "reasoning_content": "One and one."},
        ],
    },
    {
        "id": "t1",
        "messages": [
            *ask("Hello?"),
            {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes?"},
        ],
    },
    {"id": "t2", "messages": ask("Nobody answered.")},
]


@pytest.mark.parametrize("form", ["json", "string", "parquet"])
def test_a_base_of_text_is_retokenised_marked_and_what_is_left_out_is_counted(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path, form: str
) -> None:
    rows = [dict(row) for row in CONVERSATIONS]
    if form == "string":
        rows = [{**row, "messages": json.dumps(row["messages"])} for row in rows]
    name = "base.parquet" if form == "parquet" else "base.jsonl"
    base = write_base(tmp_path, rows, name=name).model_copy(
        update={"messages": "messages", "domain": None}
    )
    receipt = merge(run, samples, base)
    assert (receipt.counts["n_base"], receipt.counts["n_base_refused"]) == (2, 1)
    merged = {sample.id: sample for sample in read(run, receipt)}
    assert {s.token_source for s in merged.values()} == {"chat", "retokenized"}
    supervised = {
        name: run.template.decode(merged[name].input_ids[merged[name].loss_mask == 1].tolist())
        for name in ("t0", "t1")
    }
    assert supervised == {
        "t0": "One and one.\n</think>\n\nTwo.<|im_end|>",
        "t1": "Hm.\n</think>\n\nYes?<|im_end|>",
    }
