"""Generation over all chunks: the canary alone and all the way, then the rest, window by window.

Enters: a Run, its Plan, admitted endpoints. Leaves: one part a chunk, and one a share of each
retry. One failed chunk abandons no other: every chunk is tried, and what failed is told at the end.
Bad answers, though, end them all: what is in flight is as bad. So does a fleet that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from flows.pages.artifacts import publish_progress
from flows.pages.notices import tell_automations
from flows.pages.progress import ProgressSum
from flows.process.signals import before_stopping
from flows.stages.endpoints import admit_latecomers, open_probe
from flows.stages.opened import Run, spool_of
from tasks.completions.context import GenerationContext
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import plan_folder
from tasks.completions.rolling import RunWatch
from tasks.completions.spool import Spool
from tasks.completions.stall import watch_stalls
from tasks.completions.task import (
    generate_chunk_task,
    generate_retry_task,
    generation_context,
    needs_refresh,
)
from tasks.errors import NoEndpoint, RunBudgetExceeded, StoppedByGate
from tasks.prompts.record import Chunk, Plan
from tasks.serving.command import share_gpus
from tasks.serving.config import ServingConfig
from tasks.serving.energy import EnergyMeter
from tasks.serving.record import Endpoint
from tasks.storage.record import PartReceipt
from tasks.storage.retry import RetryPart, Standing

CheckCanary = Callable[[Run, Plan, Path], Awaitable[None]]
ShowCanary = Callable[[Run, Plan, PartReceipt, int], Awaitable[None]]

_GIB = 1 << 30
# With these, every other chunk would end the same way.
_END_ALL = (StoppedByGate, RunBudgetExceeded, NoEndpoint)


async def generate_chunks(
    run: Run,
    plan: Plan,
    endpoints: Sequence[Endpoint],
    standing: Standing,
    *,
    check_canary: CheckCanary,
    show_canary: ShowCanary,
) -> None:
    """Generate every chunk that has no part yet; the canary alone where the run pauses after it.

    Raises:
        StoppedByGate: Answers are bad; this one goes before other failures.
        RunError: The first failure, after every chunk was tried.
    """
    gates, config = run.config.gates, run.config.generation
    n_conversations = plan.n_prompts * plan.n_samples
    watch = RunWatch(
        gates, n_conversations=n_conversations, failure_budget=config.run_failure_budget
    )
    watch.recall(standing.all_parts, standing.sum_retried())
    progress = ProgressSum(n_conversations, len(plan.chunks), run.narrator.progress)

    async def inspect(path: Path) -> None:
        await check_canary(run, plan, path)

    spool = _bound_spool(run, plan)
    cached = run.persisted(generate_chunk_task)
    anew = run.persisted(generate_chunk_task, refresh_cache=True)
    async with _open_dispatcher(run, plan, endpoints, progress, watch, inspect) as dispatcher:

        async def generate_one(chunk: Chunk) -> PartReceipt:
            n_asked = chunk.n_prompts * plan.n_samples
            async with dispatcher.window.open_chunk(chunk.id, n_asked), spool.admit():
                # The store decides, not the cache: a part that is gone is made again, and one that
                # another run published meanwhile is not.
                task = anew if await needs_refresh(run.store, plan.sha, chunk) else cached
                receipt = await task(plan.sha, chunk)
            progress.take_part(receipt)
            return receipt

        for part in standing.parts:
            progress.take_part(part)
        there = {part.header.chunk_id: part for part in standing.parts}
        n_slots = sum(endpoint.slots for endpoint in endpoints)
        canary = there.get(0) or await generate_one(plan.chunks[0])
        await show_canary(run, plan, canary, n_slots)
        if standing.parts or not gates.pause_after_canary:
            # No slot waits while what is there is gone through once more.
            rest = [chunk for chunk in plan.chunks[1:] if chunk.id not in there]
            await _try_every(run, [generate_one(chunk) for chunk in rest])


async def generate_retries(
    run: Run, plan: Plan, endpoints: Sequence[Endpoint], shares: Sequence[RetryPart]
) -> None:
    """Ask the shares of one retry anew that have no part yet.

    Raises:
        StoppedByGate: Answers are bad, still or again.
        RunError: The first failure, after every share was tried.
    """
    n_conversations = sum(len(share.conversations) for share in shares)
    progress = ProgressSum(n_conversations, len(shares), run.narrator.progress)
    spool = _bound_spool(run, plan)
    # It has no part: the store says so, whatever the cache says.
    task = run.persisted(generate_retry_task, refresh_cache=True)
    async with _open_dispatcher(run, plan, endpoints, progress) as dispatcher:

        async def retry_one(share: RetryPart) -> PartReceipt:
            n_asked = len(share.conversations)
            async with dispatcher.window.open_chunk(share.id, n_asked), spool.admit():
                return await task(plan.sha, share)

        await _try_every(run, [retry_one(share) for share in shares])


def _bound_spool(run: Run, plan: Plan) -> Spool:
    folder = plan_folder(spool_of(run.settings), plan.sha)
    return Spool(folder, int(run.config.generation.spool_gib * _GIB), run.narrator.note)


@asynccontextmanager
async def _open_dispatcher(  # noqa: PLR0917
    run: Run,
    plan: Plan,
    endpoints: Sequence[Endpoint],
    progress: ProgressSum,
    watch: RunWatch | None = None,
    inspect_canary: Callable[[Path], Awaitable[None]] | None = None,
) -> AsyncIterator[Dispatcher]:
    config, key = run.config.generation, run.settings.server_api_key
    async with (
        open_probe(run) as probe,
        Dispatcher(endpoints, config, api_key=key, probe=probe) as dispatcher,
        admit_latecomers(run, dispatcher, probe),
        watch_stalls(dispatcher, run.config.serving.stall_seconds),
        publish_progress(run.config.name, run.config.gates, lambda: progress.latest),
        tell_automations(run.config.name, lambda: progress.latest),
    ):
        generation_context.set(
            GenerationContext(
                plan=plan,
                template=run.template,
                store=run.store,
                dispatcher=dispatcher,
                spool_dir=spool_of(run.settings),
                generation=config,
                gates=run.config.gates,
                on_progress=progress.take,
                watch=watch,
                inspect_canary=inspect_canary,
                take_energy=_meter_energy(run.config.serving),
            )
        )

        async def drain() -> None:
            run.narrator.note(
                f"stopping: {dispatcher.n_in_flight:,} requests in flight have "
                f"{config.drain_seconds:.0f} s to end; a second signal aborts them"
            )
            await dispatcher.drain(config.drain_seconds)

        with before_stopping(drain) if config.on_stop == "drain" else nullcontext():
            yield dispatcher


def _meter_energy(serving: ServingConfig) -> Callable[[], float | None] | None:
    """Meter the GPUs of the fleet that this host launched; those of others are not in reach."""
    if serving.mode != "launch" or serving.engine != "sglang":
        return None
    return EnergyMeter([gpu for gpus in share_gpus(serving) for gpu in gpus]).take


async def _try_every(run: Run, work: Sequence[Coroutine[Any, Any, PartReceipt]]) -> None:
    """Run all to their ends, unless one of `_END_ALL` comes: then the others are cancelled."""
    running = {asyncio.create_task(one) for one in work}
    failures: list[BaseException] = []
    try:
        while running and not any(isinstance(failure, _END_ALL) for failure in failures):
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
            failures += (failure for one in done if (failure := one.exception()) is not None)
    finally:
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    for failure in failures:
        run.narrator.note(f"{type(failure).__name__}: {failure}")
    if failures:
        raise next((f for f in failures if isinstance(f, StoppedByGate)), failures[0])
