"""A base dataset that would spoil the merged one is refused, by file and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BaseDatasetError
from tasks.tokens.base import hash_base
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.record import SamplesReceipt
from tests.support.generation import GenerationRun
from tests.support.merging import (
    assemble_all,
    expect_ids,
    invent_rows,
    merge,
    plan_merge,
    write_base,
)


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    return plan_merge(tmp_path)


@pytest.fixture
def samples(run: GenerationRun) -> list[SamplesReceipt]:
    return assemble_all(run)


def test_rows_of_the_base_that_supervise_nothing_are_counted(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    rows = invent_rows()
    rows[2]["loss_mask"] = [0] * len(rows[2]["input_ids"])
    receipt = merge(run, samples, write_base(tmp_path, rows))
    assert receipt.counts["n_base_zero_masks"] == 1


def with_row(changes: dict[str, Any]) -> list[dict[str, Any]]:
    rows = invent_rows()
    rows[5] = {**rows[5], **changes}
    return rows


@pytest.mark.parametrize("name", ["base.parquet", "base.jsonl"])
@pytest.mark.parametrize(
    "fault",
    [
        ({"input_ids": [1, 4096], "loss_mask": [0, 1]}, "another tokenizer"),
        ({"input_ids": [1, 2**31], "loss_mask": [0, 1]}, "2147483648"),
        ({"input_ids": [1, -1], "loss_mask": [0, 1]}, "-1"),
        ({"input_ids": [1, 2], "loss_mask": [0, 2]}, "0 and 1 only"),
        ({"input_ids": [1, 2], "loss_mask": [0, -100]}, "-100"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "equally long"),
        ({"input_ids": [], "loss_mask": []}, "not empty"),
        ({"id": "base-1"}, "base-1"),
    ],
)
def test_a_base_that_would_spoil_the_dataset_is_refused_by_row(
    run: GenerationRun,
    samples: list[SamplesReceipt],
    tmp_path: Path,
    name: str,
    fault: tuple[dict[str, Any], str],
) -> None:
    changes, what = fault
    base = write_base(tmp_path, with_row(changes), name=name)
    with pytest.raises(BaseDatasetError, match=what) as error:
        merge(run, samples, base)
    if "id" not in changes:
        assert error.value.where.endswith("row 5")
    assert not list(run.store.list("dataset/")), "nothing may be published of it"


def test_an_id_that_base_and_new_samples_share_is_refused(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    shared = min(expect_ids(run))
    with pytest.raises(BaseDatasetError, match=shared):
        merge(run, samples, write_base(tmp_path, with_row({"id": shared})))


@pytest.mark.parametrize("name", ["base.parquet", "base.jsonl"])
def test_a_missing_column_is_named_with_those_that_are_there(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path, name: str
) -> None:
    rows = [{"tokens" if k == "input_ids" else k: v for k, v in r.items()} for r in invent_rows()]
    base = write_base(tmp_path, rows, name=name)
    with pytest.raises(BaseDatasetError, match=r"'input_ids' is missing; .*'tokens'"):
        merge(run, samples, base)
    mapped = base.model_copy(update={"input_ids": "tokens"})
    assert merge(run, samples, mapped).counts["n_base"] == 9


def test_a_base_without_files_or_of_broken_ones_is_refused(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    with pytest.raises(BaseDatasetError, match=r"no \.parquet or \.jsonl"):
        merge(run, samples, BaseDatasetConfig(path=str(tmp_path / "none")))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 no more")
    with pytest.raises(BaseDatasetError, match="Parquet"):
        merge(run, samples, BaseDatasetConfig(path=str(broken)))


def test_a_base_that_changed_since_the_run_began_is_refused(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    base = write_base(tmp_path, invent_rows())
    sha256 = hash_base(base)
    assert merge(run, samples, base, base_sha256=sha256).counts["n_base"] == 9
    write_base(tmp_path, invent_rows(8))
    assert hash_base(base) != sha256
    with pytest.raises(BaseDatasetError, match="changed"):
        merge(run, samples, base, revision=1, base_sha256=sha256)
