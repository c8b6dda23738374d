"""Every conversation to an outcome in a published part, and bad outcomes to better ones.

Enters: a Run, its Plan, the fleet. Leaves: a Standing in which nothing lacks, or None where a
person is to look at the canary first. Servers are asked for only where there is something to do.
"""

from __future__ import annotations

import asyncio

from flows.stages.assemble import check_canary, show_canary
from flows.stages.fleet import Fleet
from flows.stages.generate import generate_chunks, generate_retries
from flows.stages.opened import Run, spool_of
from flows.stages.prove import find_damaged_parts
from flows.stages.standing import find_standing, freeze_redo
from tasks.completions.generate import plan_folder
from tasks.completions.sweep import sweep_plan
from tasks.prompts.record import Plan
from tasks.storage.retry import Standing

# A retry of bad answers can leave some, each time fewer; past a gate's threshold it stops itself.
_MOST_REDONE = 3


async def answer_prompts(run: Run, plan: Plan, fleet: Fleet) -> Standing | None:
    """Bring every chunk to a published part, the canary first and all the way, and mend.

    What `gates.redo` flags in published parts is asked anew, and what it flags in these answers
    once more, three times at most; what is flagged still is left as it is.

    Raises:
        StoppedByGate: Answers are bad.
        RunError: A chunk failed.
    """
    run.narrator.stage(
        "plan", f"{plan.n_prompts:,} prompts in {len(plan.chunks)} chunks, plan {plan.sha[:12]}"
    )
    for _ in range(1 + _MOST_REDONE):
        standing = await complete_parts(run, plan, fleet)
        if standing is None or await freeze_redo(run, plan, standing) is None:
            return standing
    return await complete_parts(run, plan, fleet)


async def complete_parts(run: Run, plan: Plan, fleet: Fleet) -> Standing | None:
    """Generate until every chunk and every share of a retry has its sound part.

    Returns:
        The parts; None where the run pauses after its canary.
    """
    was_shown = False
    while True:
        standing = await find_standing(run, plan)
        if run.config.gates.pause_after_canary and _is_canary_alone(standing):
            # Where it was just made, it was shown with what its servers make of the rest.
            if not was_shown:
                await show_canary(run, plan, standing.parts[0])
            return None
        if not _lacks(standing, plan):
            damaged = await find_damaged_parts(run, standing.all_parts)
            if not damaged:
                run.narrator.stage("generate", "every part is there")
                folder = plan_folder(spool_of(run.settings), plan.sha)
                await asyncio.to_thread(sweep_plan, folder)
                return standing
            standing = await find_standing(run, plan)
        endpoints = await fleet.endpoints()
        run.narrator.stage(
            "generate",
            f"{len(endpoints)} endpoints, {sum(e.slots for e in endpoints):,} slots, "
            f"{len(standing.parts)} of {len(plan.chunks)} parts there",
        )
        if len(standing.parts) < len(plan.chunks):
            await generate_chunks(
                run,
                plan,
                endpoints,
                standing,
                check_canary=check_canary,
                show_canary=show_canary,
            )
            was_shown = True
        if still_open := standing.list_open():
            # One retry at a time: the ids of its shares are its own.
            first = still_open[0].retry
            shares = [share for share in still_open if share.retry == first]
            await generate_retries(run, plan, endpoints, shares)


def _is_canary_alone(standing: Standing) -> bool:
    # A retry is of a run that went past its canary, which was perhaps its only chunk.
    chunks = [part.header.chunk_id for part in standing.parts]
    return chunks == [0] and not standing.lists


def _lacks(standing: Standing, plan: Plan) -> bool:
    return len(standing.parts) < len(plan.chunks) or bool(standing.list_open())
