"""What of a run stands in the store: the parts of chunks, the retries, and what they lack.

Enters: a Run and its Plan. Leaves: a Standing, and the lists of new retries. The listing decides:
what has no valid part is made, and nothing else.
"""

from __future__ import annotations

import asyncio

from flows.stages.opened import Run
from tasks.completions.survey import freeze_failures, freeze_flagged
from tasks.prompts.record import Plan
from tasks.storage.part import find_part
from tasks.storage.record import RetryList
from tasks.storage.retry import Standing, find_retry_part, read_retries, split_retry


async def find_standing(run: Run, plan: Plan) -> Standing:
    """Find the valid parts of chunks and of retries; what lacks one is left out."""
    store = run.store
    lists = tuple(await store.run(read_retries, store, plan.sha))
    parts = await asyncio.gather(
        *(
            store.run(find_part, store, chunk.id, plan.sha, chunk.input_sha256)
            for chunk in plan.chunks
        )
    )
    retries = await asyncio.gather(
        *(
            store.run(find_retry_part, store, plan.sha, share)
            for retry in lists
            for share in split_retry(retry)
        )
    )
    return Standing(
        parts=tuple(part for part in parts if part is not None),
        retries=tuple(part for part in retries if part is not None),
        lists=lists,
    )


async def freeze_redo(run: Run, plan: Plan, standing: Standing) -> RetryList | None:
    """Freeze a retry of what `gates.redo` flags; None where nothing is flagged, or none is asked.

    Needs a part of every chunk and of every retry.
    """
    gates = run.config.gates
    if not gates.redo:
        return None
    frozen = await run.store.run(freeze_flagged, run.store, plan, standing, gates)
    _tell(run, frozen)
    return frozen


async def freeze_lost(run: Run, plan: Plan, standing: Standing) -> RetryList | None:
    """Freeze a retry of every failed or partial conversation; None where none is.

    Needs a part of every chunk and of every retry.
    """
    gates = run.config.gates
    frozen = await run.store.run(freeze_failures, run.store, plan, standing, gates)
    _tell(run, frozen)
    return frozen


def _tell(run: Run, frozen: RetryList | None) -> None:
    if frozen is not None:
        run.narrator.stage(
            "retry",
            f"{len(frozen.conversations):,} conversations are asked anew, as retry {frozen.retry}",
        )
