"""Generation over all chunks: the canary alone and all the way, then the rest, window by window.

Enters: a Run, its Plan, admitted endpoints. Leaves: one part a chunk. One bad chunk abandons no
other: every chunk is tried, and what failed is told at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from flows.narrate import RunProgress
from flows.opened import Run, spool_of
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import GenerationContext, Progress
from tasks.completions.task import generate_chunk_task, generation_context, needs_refresh
from tasks.errors import StoppedByGate
from tasks.prompts.record import Chunk, Plan
from tasks.serving.record import Endpoint
from tasks.storage.part import find_part
from tasks.storage.record import PartReceipt

ShowCanary = Callable[[Run, Plan, PartReceipt], Awaitable[None]]


async def find_parts(run: Run, plan: Plan) -> dict[int, PartReceipt]:
    """Find the chunks whose valid part is in the store already."""
    found = await asyncio.gather(
        *(
            run.store.run(find_part, run.store, chunk.id, plan.sha, chunk.input_sha256)
            for chunk in plan.chunks
        )
    )
    return {
        chunk.id: receipt
        for chunk, receipt in zip(plan.chunks, found, strict=True)
        if receipt is not None
    }


async def generate_chunks(
    run: Run, plan: Plan, endpoints: Sequence[Endpoint], show_canary: ShowCanary
) -> dict[int, PartReceipt]:
    """Generate every chunk that has no part yet.

    Raises:
        StoppedByGate: Answers of a chunk are bad; this one goes before other failures.
        RunError: The first failure, after every chunk was tried.
    """
    config = run.config.generation
    key = run.settings.server_api_key
    progress = ProgressSum(run, plan)
    async with Dispatcher(endpoints, config, api_key=key) as dispatcher:
        generation_context.set(
            GenerationContext(
                plan=plan,
                template=run.template,
                store=run.store,
                dispatcher=dispatcher,
                spool_dir=spool_of(run.settings),
                generation=config,
                gates=run.config.gates,
                on_progress=progress.tell,
            )
        )

        async def generate_one(chunk: Chunk) -> PartReceipt:
            n_conversations = chunk.n_prompts * plan.n_samples
            async with dispatcher.window.open_chunk(chunk.id, n_conversations):
                # The store decides, not the cache: a part that is gone is made again.
                refresh = await needs_refresh(run.store, plan.sha, chunk)
                task = run.persisted(generate_chunk_task, refresh_cache=refresh)
                return await task(plan.sha, chunk)

        canary = await generate_one(plan.chunks[0])
        await show_canary(run, plan, canary)
        rest = await asyncio.gather(
            *(generate_one(chunk) for chunk in plan.chunks[1:]), return_exceptions=True
        )
    failures = [result for result in rest if isinstance(result, BaseException)]
    if failures:
        for failure in failures:
            run.narrator.note(f"{type(failure).__name__}: {failure}")
        gates = (failure for failure in failures if isinstance(failure, StoppedByGate))
        raise next(gates, failures[0])
    receipts = [canary, *(result for result in rest if isinstance(result, PartReceipt))]
    return {receipt.header.chunk_id: receipt for receipt in receipts}


class ProgressSum:
    """Adds the chunks' progress up to the run's."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._narrator = run.narrator
        self._n_total = plan.n_prompts * plan.n_samples
        self._latest: dict[int, Progress] = {}
        self._began = time.monotonic()

    def tell(self, state: Progress) -> None:
        """Take one chunk's progress and tell the run's."""
        self._latest[state.chunk_id] = state
        latest = self._latest.values()
        self._narrator.progress(
            RunProgress(
                n_done=sum(chunk.n_done for chunk in latest),
                n_total=self._n_total,
                n_failed=sum(chunk.n_failed for chunk in latest),
                n_output_tokens=sum(chunk.n_output_tokens for chunk in latest),
                n_in_flight=state.n_in_flight,
                seconds=time.monotonic() - self._began,
            )
        )
