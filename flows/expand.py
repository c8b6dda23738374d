"""The main job, told in order: from source rows to a training set.

    validate → extract ∥ ensure fleet → plan → canary (the whole road for chunk 0) → generate
    → assemble → merge → report → manifest

Each step looks into the store first: what exists is done. The same call therefore starts a run,
resumes it after a crash, and says so when nothing is left to do.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.config import ExpansionConfig
from flows.stages.answer import answer_prompts
from flows.stages.damage import known_missing
from flows.stages.ending import await_review, conclude, nothing_new, stop_by_gate
from flows.stages.extraction import extract_all
from flows.stages.fleet import Fleet, borrow_fleet
from flows.stages.narrow import load_narrowed
from flows.stages.opened import Run, open_run
from flows.stages.preflight import judge_environment
from tasks.errors import StoppedByGate
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.prompts.task import plan_chunks

_INPUTS = ("extracted/", "prompts/")


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
        A completed state with the run's summary; NothingNew where earlier runs met every row;
        CompletedPartial where rows failed within the budget; AwaitingReview where the canary is
        to be looked at; StoppedByGate where answers were bad.
    """
    triggered = source is not None
    root = config.store.uri if triggered else None
    narrowed = await load_narrowed(config, source, revision)
    async with open_run(narrowed, root=root) as run:
        await judge_environment(run)
        try:
            async with borrow_fleet(run) as fleet:
                plan = await plan_run(run, fleet, triggered=triggered)
                if plan is None:
                    return nothing_new(run)
                standing = await answer_prompts(run, plan, fleet)
        except StoppedByGate as stopped:
            return await stop_by_gate(run, stopped)
        if standing is None:
            return await await_review(run)
        return await conclude(run, plan, standing)


async def plan_run(run: Run, fleet: Fleet, *, triggered: bool) -> Plan | None:
    """Extract every source and freeze the plan, or take the one that is there.

    The fleet comes up meanwhile; a run that has a past extracts first, since it may find nothing
    new: None.
    """
    frozen = await run.store.run(read_plan, run.store)
    if frozen is not None and not any(key.startswith(_INPUTS) for key in known_missing.get()):
        return frozen
    if not triggered and not run.past.runs:
        fleet.start()
    receipts = await extract_all(run)
    if run.past.runs and not any(receipt.n_prompts for receipt in receipts):
        return None
    sampling = run.config.sampling.model_dump(exclude={"max_tokens", "n_samples"})
    # The store has no plan, whatever the cache says.
    return await run.persisted(plan_chunks, refresh_cache=True)(
        run.request.asked_sha,
        receipts,
        sampling,
        run.config.sampling.n_samples,
        run.config.sampling.max_tokens,
    )
