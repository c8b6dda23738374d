"""A small run to merge, and base datasets of any Arrow type to merge it with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.tokens.assemble import assemble_part
from tasks.tokens.config import BaseDatasetConfig, MergeConfig, TokensConfig
from tasks.tokens.export import iter_shards
from tasks.tokens.merge import merge_dataset
from tasks.tokens.record import MergeReceipt, Sample, SamplesReceipt
from tasks.tokens.rows import iter_rows
from tests.support.generation import GenerationRun, build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, conclude, publish_outcomes

MERGE = MergeConfig(rows_per_shard=7, seed=3)


def plan_merge(folder: Path) -> GenerationRun:
    """Plan two chunks of 12 questions in all."""
    template = load_template()
    prompts = [make_prompt(template, ask(f"What is {i} + 2?"), row=i) for i in range(12)]
    return build_run(folder, template, [prompts[:5], prompts[5:]])


def assemble_all(run: GenerationRun) -> list[SamplesReceipt]:
    """Answer and assemble every chunk."""
    receipts = []
    for chunk in run.plan.chunks:
        outcomes = [
            conclude(complete(run, prompt, "Hm.\n", f"\n\nAnswer {prompt.source.row}, as asked."))
            for prompt in run.prompts[chunk.id]
        ]
        part = publish_outcomes(run, chunk.id, outcomes)
        receipts.append(
            assemble_part(run.store, run.plan, chunk, part, run.template, TokensConfig())
        )
    return receipts


def invent_rows(n: int = 9) -> list[dict[str, Any]]:
    """Invent rows of a base dataset, each of another length."""
    return [
        {
            "id": f"base-{i}",
            "input_ids": [i, i + 1, i + 2] * (i + 1),
            "loss_mask": [0, 1, 1] * (i + 1),
            "topic": "maths" if i % 3 else "code",
        }
        for i in range(n)
    ]


def write_base(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    *,
    ids: pa.DataType | None = None,
    mask: pa.DataType | None = None,
    name: str = "base.parquet",
    **columns: str,
) -> BaseDatasetConfig:
    """Write a base dataset with the Arrow types asked for."""
    path = folder / name
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        table = pa.Table.from_pylist(list(rows))
        fields: list[pa.Field[Any]] = []
        for field in table.schema:
            kind = {"input_ids": ids, "loss_mask": mask}.get(field.name)
            fields.append(pa.field(field.name, kind or field.type))
        pq.write_table(table.cast(pa.schema(fields)), path, row_group_size=4)
    return BaseDatasetConfig(path=str(path), domain="topic", **columns)


def merge(
    run: GenerationRun,
    samples: Sequence[SamplesReceipt],
    base: BaseDatasetConfig | None = None,
    revision: int = 0,
    **changes: Any,
) -> MergeReceipt:
    """Merge with settings that give several shards."""
    settings = changes.pop("settings", MERGE)
    arguments = {"template": run.template, "scratch_dir": run.spool_dir, **changes}
    return merge_dataset(run.store, run.plan, samples, base, settings, revision, **arguments)


def read(run: GenerationRun, receipt: MergeReceipt) -> list[Sample]:
    """Read the merged dataset back."""
    return [row for batch in iter_shards(run.store, receipt.shards) for row in iter_rows(batch)]


def expect_ids(run: GenerationRun) -> set[str]:
    """Name the samples that the run must give."""
    return {f"{prompt.id}#s0#g0" for prompts in run.prompts for prompt in prompts}
