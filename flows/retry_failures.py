"""The job that mends: failed and broken-off conversations are asked anew, into a later revision.

Enters: the configuration of a finished run. Leaves: a retry beside its parts and one more manifest,
or word that nothing failed. What was frozen by a run of this flow that was killed is gone on with.
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from flows.config import ExpansionConfig
from flows.stages.answer import answer_prompts
from flows.stages.ending import await_review, conclude, describe_end, stop_by_gate
from flows.stages.finish import summarise
from flows.stages.fleet import borrow_fleet
from flows.stages.narrow import load_narrowed
from flows.stages.opened import Run, open_run
from flows.stages.preflight import judge_environment
from flows.stages.standing import find_standing, freeze_lost
from tasks.errors import StoppedByGate, UserError
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.storage.manifest import read_latest
from tasks.storage.retry import Standing


@flow(name="retry-failures", persist_result=False)
async def retry_failures(
    config: ExpansionConfig, source: str | None = None, revision: str | None = None
) -> State[Any]:
    """Ask the failed and partial conversations of a finished run anew.

    Refused rows are asked anew as well. What fails again stays as it was.

    Args:
        config: As the run was started with.
        source: As the run was started with.
        revision: As the run was started with.

    Returns:
        A completed state with the run's summary; CompletedPartial where rows failed again.
    """
    narrowed = await load_narrowed(config, source, revision)
    async with open_run(narrowed, must_exist=True) as run:
        plan, standing = await _find_finished(run)
        latest = await run.store.run(read_latest, run.store)
        # A retry that no manifest tells of yet is gone on with; no other is begun beside it.
        n_told = 0 if latest is None else len(latest.retry_lists)
        if n_told == len(standing.lists) and not standing.list_open():
            frozen = await freeze_lost(run, plan, standing)
            if frozen is None:
                run.narrator.stage("retry", "no conversation failed: nothing to ask anew")
            if frozen is None and latest is not None:
                return describe_end(run, summarise(run, latest))
            if frozen is None:
                return await conclude(run, plan, standing)
        await judge_environment(run)
        try:
            async with borrow_fleet(run) as fleet:
                whole = await answer_prompts(run, plan, fleet)
        except StoppedByGate as stopped:
            return await stop_by_gate(run, stopped)
        if whole is None:
            return await await_review(run)
        return await conclude(run, plan, whole)


async def _find_finished(run: Run) -> tuple[Plan, Standing]:
    plan = await run.store.run(read_plan, run.store)
    if plan is not None:
        standing = await find_standing(run, plan)
        if len(standing.parts) == len(plan.chunks):
            return plan, standing
    raise UserError(
        "the run at this prefix is not finished",
        where=run.store.uri,
        remedy="Run it to its end (`draftmill run`): failures that can pass are tried again there.",
    )
