"""Conversations to one part of outcomes, exactly once: of a chunk, or of a share of a retry.

Enters: a GenerationContext, and a Chunk or a RetryPart. Leaves: the receipt of the part, which
stands in the store when this returns. A part that exists is never made again.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tasks.completions.batch import BatchRun
from tasks.completions.context import Batch, GenerationContext
from tasks.completions.record import Outcome
from tasks.completions.redo import set_condemned_aside
from tasks.completions.replay import Replay
from tasks.completions.survey import read_outcomes
from tasks.prompts.chunk import read_chunk, read_retried
from tasks.prompts.record import Chunk, Plan
from tasks.storage.layout import parse_part_key, part_prefix
from tasks.storage.part import find_part
from tasks.storage.record import PartHeader, PartReceipt
from tasks.storage.retry import Conversation, RetryPart, find_retry_part
from tasks.storage.store import ArtifactStore


async def generate_chunk(ctx: GenerationContext, chunk: Chunk) -> PartReceipt:
    """Generate what is missing of a chunk and publish its part; existence means done.

    Raises:
        StoppedByGate: a gate is past its threshold; nothing was published.
        FailureBudgetExceeded: too many conversations have no answer; nothing was published.
        MaskError: the canary's samples supervise next to nothing; nothing was published.
        TokenMismatch: the canary's ids are not those of its text; nothing was published.
        NoEndpoint: no server was admitted for too long.
        SpoolFailed: a journal cannot be written.
        KeyTaken: the chunk's key holds the part of another plan.
        StoreError: the store failed.
    """
    store, plan = ctx.store, ctx.plan
    found = await store.run(find_part, store, chunk.id, plan.sha, chunk.input_sha256)
    if found is not None:
        return found
    prompts = await store.run(read_chunk, store, chunk)
    return await _run(
        ctx,
        Batch(
            name=f"chunk {chunk.id}",
            header=PartHeader(
                plan_sha=plan.sha, chunk_id=chunk.id, input_sha256=chunk.input_sha256
            ),
            asked={
                (prompt.id, sample): prompt
                for prompt in prompts
                for sample in range(plan.n_samples)
            },
            folder=spool_folder(ctx.spool_dir, plan.sha, chunk.id),
            gates=ctx.gates,
            failure_budget=ctx.generation.failure_budget,
            watch=ctx.watch,
            inspect=ctx.inspect_canary if chunk.id == 0 else None,
            fallbacks={},
        ),
    )


async def generate_retry(ctx: GenerationContext, share: RetryPart) -> PartReceipt:
    """Ask a share of a retry anew and publish its part; existence means done.

    A retry of bad answers is judged however few there are. A retry of failures has no budget for
    them: what fails again was lost before, and what had more answers before stays as it was.

    Raises:
        RunError: as generate_chunk.
    """
    store, plan = ctx.store, ctx.plan
    found = await store.run(find_retry_part, store, plan.sha, share)
    if found is not None:
        return found
    of_failures = share.reason == "failures"
    return await _run(
        ctx,
        Batch(
            name=f"retry {share.retry}, part {share.id}",
            header=PartHeader(
                plan_sha=plan.sha,
                chunk_id=share.id,
                input_sha256=share.input_sha256,
                retry=share.retry,
            ),
            asked=await store.run(read_retried, store, plan, share.conversations),
            folder=retry_folder(ctx.spool_dir, plan, share),
            gates=ctx.gates if of_failures else ctx.gates.model_copy(update={"min_rows": 1}),
            failure_budget=1.0 if of_failures else ctx.generation.failure_budget,
            watch=None,
            inspect=None,
            fallbacks=await store.run(_read_partial, store, share) if of_failures else {},
        ),
    )


def plan_folder(spool_dir: Path, plan_sha: str) -> Path:
    """Say where the journals of a plan lie, a folder a chunk."""
    return spool_dir / plan_sha[:16]


def spool_folder(spool_dir: Path, plan_sha: str, chunk_id: int) -> Path:
    """Say where a chunk's journals lie."""
    return plan_folder(spool_dir, plan_sha) / f"chunk-{chunk_id:06d}"


def retry_folder(spool_dir: Path, plan: Plan, share: RetryPart) -> Path:
    """Say where the journals of a share of a retry lie."""
    return plan_folder(spool_dir, plan.sha) / f"retry-{share.retry:02d}-{share.id:06d}"


async def _run(ctx: GenerationContext, batch: Batch) -> PartReceipt:
    thinking = ctx.plan.thinking
    await asyncio.to_thread(set_condemned_aside, batch.folder, batch.gates, thinking=thinking)
    with await asyncio.to_thread(Replay, batch.folder) as replay:
        return await BatchRun(ctx, batch, replay).run()


def _read_partial(store: ArtifactStore, share: RetryPart) -> dict[Conversation, Outcome]:
    """Read the conversations that broke off half-way: some of their turns are better than none."""
    by_part: dict[str, set[Conversation]] = {}
    for entry in share.conversations:
        if entry.status == "partial":
            by_part.setdefault(entry.part_key, set()).add((entry.prompt_id, entry.sample))
    return {
        conversation: outcome
        for key, wanted in by_part.items()
        for conversation, outcome in read_outcomes(store, _revise(store, key), wanted).items()
    }


def _revise(store: ArtifactStore, key: str) -> str:
    """Give the key of the revision that counts: the part may have been damaged since the freeze."""
    place = parse_part_key(key)
    prefix = part_prefix(place.retry, place.number) if place is not None else key
    sound = [stat.key for stat in store.list(prefix) if stat.key not in store.damaged]
    revisions = [(there.revision, found) for found in sound if (there := parse_part_key(found))]
    return max(revisions, default=(0, key))[1]
