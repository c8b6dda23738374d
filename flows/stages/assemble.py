"""Parts to training samples, and the canary: chunk 0 taken the whole road before the rest.

Enters: a Run, its Plan, receipts of parts. Leaves: receipts of samples. No GPU is needed here.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import orjson

from flows.stages.opened import Run
from flows.stages.show import publish_canary_page
from tasks.errors import MaskError
from tasks.prompts.record import Chunk, Plan
from tasks.storage.config import StoreConfig
from tasks.storage.layout import data_key
from tasks.storage.part import read_receipt
from tasks.storage.record import PartReceipt, ShardReceipt
from tasks.storage.retry import RetryPart, Standing, split_retry
from tasks.storage.store import ArtifactStore, open_store
from tasks.tokens.assemble import assemble_part, find_samples
from tasks.tokens.export import export_specforge, iter_shards
from tasks.tokens.pace import Pace
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.task import TokensContext, assemble_part_task, tokens_context

_AT_ONCE = 2


async def assemble_all(run: Run, plan: Plan, standing: Standing) -> list[SamplesReceipt]:
    """Make the training samples of every part, of chunks and of retries, in their order.

    Raises:
        RunError: As assemble_parts.
    """
    chunks = {chunk.id: chunk for chunk in plan.chunks}
    shares = {
        (share.retry, share.id): share for retry in standing.lists for share in split_retry(retry)
    }
    asked: list[tuple[Chunk | RetryPart, PartReceipt]] = []
    asked += ((chunks[part.header.chunk_id], part) for part in standing.parts)
    asked += ((shares[part.header.retry, part.header.chunk_id], part) for part in standing.retries)
    return await assemble_parts(run, plan, asked)


async def assemble_parts(
    run: Run, plan: Plan, asked: Sequence[tuple[Chunk | RetryPart, PartReceipt]]
) -> list[SamplesReceipt]:
    """Make the training samples of each part, given with what it answers.

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
            scratch_dir=run.settings.spool_dir / "merge",
            base=config.base,
            base_sha256=run.request.resolved["base_sha256"],
            tell=run.narrator.note,
        )
    )
    # The store decides, not the cache: samples that are gone or damaged are made again.
    task = run.persisted(assemble_part_task, refresh_cache=True)
    gate = asyncio.Semaphore(_AT_ONCE)
    pace = Pace("assembling", run.narrator.note, sum(part.footer.n_rows for _, part in asked))

    async def assemble_one(chunk: Chunk | RetryPart, part: PartReceipt) -> SamplesReceipt:
        async with gate:
            there = await run.store.run(find_samples, run.store, plan, part, config.tokens)
            if there is None:
                there = await task(plan.sha, chunk, part)
            pace.step(part.footer.n_rows)
            return there

    return list(await asyncio.gather(*(assemble_one(chunk, part) for chunk, part in asked)))


async def check_canary(run: Run, plan: Plan, path: Path) -> None:
    """Take chunk 0 the whole road in a scratch folder, before its part is published.

    Raises:
        MaskError: What a trainer would read supervises next to nothing.
        TokenMismatch: Ids and text disagree.
    """
    await asyncio.to_thread(_rehearse, run, plan, path)


def _rehearse(run: Run, plan: Plan, path: Path) -> None:
    chunk = plan.chunks[0]
    with (
        tempfile.TemporaryDirectory(prefix="draftmill-canary-") as folder,
        closing(open_store(StoreConfig(uri=Path(folder).as_uri(), protected=()))) as scratch,
    ):
        scratch.create(chunk.prompts_key, run.store.get(chunk.prompts_key))
        scratch.create_file(data_key(chunk.id), path)
        part = read_receipt(scratch, data_key(chunk.id))
        samples = assemble_part(scratch, plan, chunk, part, run.template, run.config.tokens)
        _check_export(scratch, samples)


async def show_canary(run: Run, plan: Plan, part: PartReceipt, n_slots: int | None = None) -> None:
    """Take chunk 0 the rest of the way: assembled, checked, exported, shown.

    Raises:
        MaskError: What a trainer would read supervises nothing, or other ids than were sampled.
    """
    (samples,) = await assemble_parts(run, plan, [(plan.chunks[0], part)])
    await asyncio.to_thread(_check_export, run.store, samples)
    key = await publish_canary_page(run, plan, part, samples, n_slots)
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
        for path in export_specforge(iter_shards(store, [shard]), Path(folder) / "export"):
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
