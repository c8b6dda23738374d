"""Samples, dataset and manifest made again from what stands in the store: no server, no source.

Enters: a configuration read out of the manifest. Leaves: the next manifest. Parts that are damaged
are published again where the journals of this machine hold every answer; else the run's own
configuration is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from prefect import flow
from prefect.client.schemas.objects import State

from flows.config import ExpansionConfig
from flows.stages.ending import conclude
from flows.stages.opened import Run, open_run, spool_of
from flows.stages.prove import find_damaged_parts
from flows.stages.standing import find_standing
from tasks.completions.config import Gate, GatesConfig
from tasks.completions.context import GenerationContext
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk, generate_retry, retry_folder, spool_folder
from tasks.completions.replay import Replay
from tasks.errors import UserError
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.storage.retry import Standing

# What was published once was judged then.
_JUDGED = GatesConfig(accept=get_args(Gate))


@flow(name="rebuild", persist_result=False)
async def rebuild(config: ExpansionConfig) -> State[Any]:
    """Assemble, merge, report and write the manifest anew, from the parts alone.

    Args:
        config: What the manifest says of the run.

    Returns:
        A completed state with the run's summary.
    """
    async with open_run(config, must_exist=True, with_sources=False) as run:
        plan = await run.store.run(read_plan, run.store)
        if plan is None:
            raise _needs_servers(run, "there is no plan")
        standing = await find_standing(run, plan)
        if await find_damaged_parts(run, standing.all_parts):
            standing = await find_standing(run, plan)
        if len(standing.parts) < len(plan.chunks) or standing.list_open():
            await republish(run, plan, standing)
            standing = await find_standing(run, plan)
        n_lacking = len(plan.chunks) - len(standing.parts) + len(standing.list_open())
        if n_lacking:
            raise _needs_servers(run, f"the answers of {n_lacking} parts are not here any more")
        return await conclude(run, plan, standing)


async def republish(run: Run, plan: Plan, standing: Standing) -> None:
    """Publish the parts whose answers the journals of this machine hold."""
    there = {part.header.chunk_id for part in standing.parts}
    spool_dir = spool_of(run.settings)
    async with Dispatcher([], run.config.generation) as nobody:
        context = GenerationContext(
            plan=plan,
            template=run.template,
            store=run.store,
            dispatcher=nobody,
            spool_dir=spool_dir,
            generation=run.config.generation,
            gates=_JUDGED,
        )
        for chunk in plan.chunks:
            folder = spool_folder(spool_dir, plan.sha, chunk.id)
            n_asked = chunk.n_prompts * plan.n_samples
            if chunk.id not in there and _holds_every_answer(folder, n_asked):
                await generate_chunk(context, chunk)
                run.narrator.note(f"chunk {chunk.id} is published again from its journal")
        for share in standing.list_open():
            folder = retry_folder(spool_dir, plan, share)
            if _holds_every_answer(folder, len(share.conversations)):
                await generate_retry(context, share)
                run.narrator.note(
                    f"retry {share.retry}, part {share.id} is published again from its journal"
                )


def _holds_every_answer(folder: Path, n_asked: int) -> bool:
    with Replay(folder) as replay:
        return len(replay.rows) == n_asked


def _needs_servers(run: Run, what: str) -> UserError:
    return UserError(
        f"answers must be asked for again, and the prefix does not say of whom: {what}",
        where=run.store.uri,
        remedy="Run `draftmill repair CONFIG` with the configuration of the run.",
    )
