"""Parts to training samples, and the canary: chunk 0 taken the whole road before the rest.

Enters: a Run, its Plan, receipts of parts. Leaves: receipts of samples. No GPU is needed here.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import orjson

from flows.opened import Run
from flows.show import publish_canary_page
from tasks.errors import MaskError
from tasks.prompts.record import Plan
from tasks.storage.record import PartReceipt, ShardReceipt
from tasks.storage.store import ArtifactStore
from tasks.tokens.assemble import find_samples
from tasks.tokens.export import export_specforge
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
            # The store decides, not the cache: samples that are gone or damaged are made again.
            there = await run.store.run(find_samples, run.store, plan, part, config.tokens)
            if there is not None:
                return there
            task = run.persisted(assemble_part_task, refresh_cache=True)
            return await task(plan.sha, chunks[part.header.chunk_id], part)

    return list(await asyncio.gather(*(assemble_one(part) for part in parts)))


async def show_canary(run: Run, plan: Plan, part: PartReceipt) -> None:
    """Take chunk 0 the rest of the way: assembled, checked, exported, shown.

    Raises:
        MaskError: What a trainer would read supervises nothing, or other ids than were sampled.
    """
    (samples,) = await assemble_parts(run, plan, [part])
    await asyncio.to_thread(_check_export, run.store, samples)
    key = await publish_canary_page(run, plan, part, samples)
    share = samples.n_supervised_tokens / max(1, samples.n_tokens)
    run.narrator.stage(
        "canary",
        f"{samples.n_samples:,} samples, {share:.0%} of their tokens supervised: {key}",
    )


def _check_export(store: ArtifactStore, samples: SamplesReceipt) -> None:
    """Export the samples as a trainer would read them, and read them back."""
    shard = ShardReceipt(
        key=samples.key,
        sha256=samples.sha256,
        n_bytes=samples.n_bytes,
        n_rows=samples.n_samples,
    )
    n_rows = n_supervised = 0
    with tempfile.TemporaryDirectory(prefix="draftmill-canary-") as folder:
        for path in export_specforge(store, [shard], Path(folder) / "export"):
            with path.open("rb") as lines:
                for row in map(orjson.loads, lines):
                    n_rows += 1
                    n_supervised += sum(row["loss_mask"])
                    if not any(row["loss_mask"]) or len(row["loss_mask"]) != len(row["input_ids"]):
                        raise MaskError(
                            f"row {n_rows} of the export supervises nothing, or is uneven",
                            where=samples.key,
                        )
    if (n_rows, n_supervised) != (samples.n_samples, samples.n_supervised_tokens):
        raise MaskError(
            f"the export has {n_rows} rows and {n_supervised} supervised tokens, not "
            f"{samples.n_samples} and {samples.n_supervised_tokens}",
            where=samples.key,
        )
