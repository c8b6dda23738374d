"""The main job, told in order: from source rows to a training set.

    validate → extract ∥ ensure fleet → plan → canary (the whole road for chunk 0) → generate
    → assemble → merge → report → manifest

Each step looks into the store first: what exists is done. The same call therefore starts a run,
resumes it after a crash, and says so when nothing is left to do.
"""

from __future__ import annotations

import asyncio
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.assemble import assemble_parts, show_canary
from flows.config import ExpansionConfig
from flows.finish import finish_run
from flows.fleet import Fleet, borrow_fleet
from flows.generate import find_parts, generate_chunks
from flows.opened import Run, narrow, open_run
from flows.validate import judge_environment
from tasks.errors import StoppedByGate
from tasks.prompts.chunk import read_plan
from tasks.prompts.extract import has_extracted
from tasks.prompts.record import ExtractReceipt, Plan, ResolvedSource
from tasks.prompts.task import extract_source, plan_chunks
from tasks.storage.record import PartReceipt


@flow(name="expand", persist_result=False)
async def expand(
    config: ExpansionConfig, source: str | None = None, revision: str | None = None
) -> State[Any]:
    """Answer public prompts with the target model and make a training set of the answers.

    Args:
        config: What is asked for.
        source: Run over this one source alone, on a prefix derived from `store.uri`.
        revision: The source's commit; empty: the newest.

    Returns:
        A completed state with the run's summary; CompletedPartial where rows failed within the
        budget; StoppedByGate where answers were bad.
    """
    triggered = source is not None
    async with open_run(await asyncio.to_thread(narrow, config, source, revision)) as run:
        await judge_environment(run)
        try:
            async with borrow_fleet(run) as fleet:
                plan = await plan_run(run, fleet, triggered=triggered)
                parts = await answer_prompts(run, plan, fleet)
        except StoppedByGate as stopped:
            return Failed(name="StoppedByGate", message=str(stopped), data=stopped)
        run.narrator.stage("assemble", f"{len(parts)} parts")
        samples = await assemble_parts(run, plan, parts)
        summary = await finish_run(run, plan, parts, samples)
    n_lost = summary["counts"]["n_failed"] + summary["counts"]["n_partial"]
    if n_lost:
        n_all = summary["counts"]["n_conversations"]
        message = f"{n_all - n_lost:,} of {n_all:,} conversations are whole"
        return Completed(name="CompletedPartial", message=message, data=summary)
    return Completed(message="every conversation is whole", data=summary)


async def plan_run(run: Run, fleet: Fleet, *, triggered: bool) -> Plan:
    """Extract every source and freeze the plan, or take the one that is there.

    The fleet comes up meanwhile; a triggered run extracts first, since it may find nothing new.
    """
    frozen = await run.store.run(read_plan, run.store)
    if frozen is not None:
        return frozen
    if not triggered:
        fleet.start()
    run.narrator.stage("extract", f"{len(run.sources)} sources")
    request_sha = run.request.asked_sha
    receipts = await asyncio.gather(*(extract_one(run, source) for source in run.sources))
    for receipt in receipts:
        run.narrator.note(
            f"{receipt.source}: {receipt.n_rows:,} rows, {receipt.n_prompts:,} prompts, "
            f"{receipt.n_rejected:,} rejected, {receipt.n_not_sampled:,} not sampled"
        )
    sampling = run.config.sampling.model_dump(exclude={"max_tokens", "n_samples"})
    # The store has no plan, whatever the cache says.
    return await run.persisted(plan_chunks, refresh_cache=True)(
        request_sha,
        receipts,
        sampling,
        run.config.sampling.n_samples,
        run.config.sampling.max_tokens,
    )


async def extract_one(run: Run, source: ResolvedSource) -> ExtractReceipt:
    """Extract a source, or take the receipt of an earlier run whose objects are still there."""
    task, request_sha = run.persisted(extract_source), run.request.asked_sha
    receipt = await task(source, request_sha)
    if await run.store.run(has_extracted, run.store, receipt):
        return receipt
    return await task.with_options(refresh_cache=True)(source, request_sha)


async def answer_prompts(run: Run, plan: Plan, fleet: Fleet) -> list[PartReceipt]:
    """Bring every chunk to a published part, the canary first and all the way."""
    run.narrator.stage(
        "plan", f"{plan.n_prompts:,} prompts in {len(plan.chunks)} chunks, plan {plan.sha[:12]}"
    )
    parts = await find_parts(run, plan)
    if len(parts) == len(plan.chunks):
        run.narrator.stage("generate", "every part is there already")
    else:
        endpoints = await fleet.endpoints()
        run.narrator.stage(
            "generate",
            f"{len(endpoints)} endpoints, {sum(e.slots for e in endpoints):,} slots, "
            f"{len(parts)} of {len(plan.chunks)} parts there",
        )
        parts = await generate_chunks(run, plan, endpoints, show_canary)
    return [parts[chunk.id] for chunk in plan.chunks]
