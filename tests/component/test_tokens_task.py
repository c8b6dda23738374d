"""Assembly and merge as tasks: what their results are cached under, and that they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.context import TaskRunContext
from prefect.logging import disable_run_logger

from tasks.storage.record import PartReceipt
from tasks.tokens.config import MergeConfig, TokensConfig
from tasks.tokens.task import TokensContext, assemble_part_task, merge_task, tokens_context
from tests.support.generation import GenerationRun, build_run, invent_prompts, load_template
from tests.support.outcomes import complete, conclude, publish_outcomes

RUN = cast("TaskRunContext", None)


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    prompts = invent_prompts(load_template(), 8)
    return build_run(tmp_path, load_template(), [prompts])


@pytest.fixture
def part(run: GenerationRun) -> PartReceipt:
    outcomes = [
        conclude(complete(run, prompt, "Hm.\n", f"\n\nAnswer {i}, as it was asked for."))
        for i, prompt in enumerate(run.prompts[0])
    ]
    return publish_outcomes(run, 0, outcomes)


@pytest.fixture
def context(run: GenerationRun) -> Iterator[TokensContext]:
    made = TokensContext(
        store=run.store,
        plan=run.plan,
        template=run.template,
        tokens=TokensConfig(),
        merge=MergeConfig(),
        scratch_dir=run.spool_dir,
    )
    token = tokens_context.set(made)
    yield made
    tokens_context.reset(token)


async def test_a_part_travels_to_a_dataset(
    run: GenerationRun, part: PartReceipt, context: TokensContext
) -> None:
    chunk = run.plan.chunks[0]
    with disable_run_logger():
        samples = await assemble_part_task.fn(run.plan.sha, chunk, part)
        merged = await merge_task.fn(run.plan.sha, [samples], 0, {})
    assert merged.counts["n_rows"] == samples.n_samples == 8


def assemble_key(context: TokensContext, plan_sha: str, part: PartReceipt) -> str:
    token = tokens_context.set(context)
    try:
        make_key = assemble_part_task.cache_key_fn
        assert make_key is not None
        parameters: dict[str, Any] = {"plan_sha": plan_sha, "chunk": None, "receipt": part}
        return str(make_key(RUN, parameters))
    finally:
        tokens_context.reset(token)


def test_a_result_is_cached_for_one_plan_one_part_one_policy_and_one_store(
    run: GenerationRun, part: PartReceipt, context: TokensContext, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    elsewhere = build_run(tmp_path / "elsewhere", run.template, run.prompts)
    drop = TokensConfig(truncated="drop")
    keys = [
        assemble_key(context, "0" * 64, part),
        assemble_key(context, "1" * 64, part),
        assemble_key(context, "0" * 64, part.model_copy(update={"sha256": "f" * 64})),
        assemble_key(replace(context, tokens=drop), "0" * 64, part),
        assemble_key(replace(context, store=elsewhere.store), "0" * 64, part),
    ]
    assert len(set(keys)) == len(keys)
    assert assemble_key(context, "0" * 64, part) == keys[0]
    assert keys[0].startswith("assemble-v")
