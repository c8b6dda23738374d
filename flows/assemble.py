"""Parts to training samples, and the canary: chunk 0 taken the whole road before the rest.

Enters: a Run, its Plan, receipts of parts. Leaves: receipts of samples. No GPU is needed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flows.opened import Run
from tasks.prompts.record import Plan
from tasks.storage.record import PartReceipt
from tasks.tokens.assemble import derive_tokens_key
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.task import TokensContext, assemble_part_task, tokens_context

_AT_ONCE = 2


async def assemble_parts(
    run: Run, plan: Plan, parts: Sequence[PartReceipt]
) -> list[SamplesReceipt]:
    """Make the training samples of each part.

    Raises:
        MaskError: Masks are empty, or tiny in too large a share.
        TokenMismatch: Ids and text disagree.
    """
    config = run.config
    tokens_context.set(
        TokensContext(
            store=run.store,
            plan=plan,
            template=run.template,
            tokens=config.tokens,
            merge=config.merge,
            base=config.base,
            base_sha256=run.request.resolved["base_sha256"],
        )
    )
    chunks = {chunk.id: chunk for chunk in plan.chunks}
    gate = asyncio.Semaphore(_AT_ONCE)

    async def assemble_one(part: PartReceipt) -> SamplesReceipt:
        async with gate:
            # A cached receipt does not prove that its samples are still there.
            key = derive_tokens_key(config.tokens, plan, part)
            gone = await run.store.run(run.store.head, key) is None
            task = run.persisted(assemble_part_task, refresh_cache=gone)
            return await task(plan.sha, chunks[part.header.chunk_id], part)

    return list(await asyncio.gather(*(assemble_one(part) for part in parts)))


async def show_canary(run: Run, plan: Plan, part: PartReceipt) -> None:
    """Take chunk 0 the rest of the way: assembled, checked, exported, shown."""
    (samples,) = await assemble_parts(run, plan, [part])
    run.narrator.stage("canary", f"{samples.n_samples} samples")
