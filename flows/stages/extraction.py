"""Extraction as a run does it: all sources side by side, after a look at what came before.

Enters: a Run. Leaves: the receipt of each source. It tells how far each source is, for a source of
millions of rows is read for minutes.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from flows.pages.narrate import Narrator
from flows.stages.opened import Run
from flows.stages.survey import survey
from tasks.completions.garbage import collect_rarely
from tasks.prompts.extract import has_extracted
from tasks.prompts.record import ExtractReceipt, ResolvedSource
from tasks.prompts.selection import Wishes
from tasks.prompts.task import extract_source, extraction_context

_TOLD_EVERY_SECONDS = 10.0


async def extract_all(run: Run) -> list[ExtractReceipt]:
    """Extract every source, leaving out what earlier runs and the base dataset have.

    Raises:
        SourceError: A source cannot be read as its mapping says.
        CorruptPart: An earlier run is no longer what it was.
        BaseDatasetError: The base dataset cannot be read.
    """
    config, past = run.config, run.past
    if past.runs or config.base is not None:
        base = "" if config.base is None else f", base {config.base.path}"
        run.narrator.stage("survey", f"{len(past.runs)} earlier runs{base}")
    found = await asyncio.to_thread(
        survey,
        past,
        config.store,
        run.credentials,
        config.base,
        run.template,
        thinking=run.model.thinking,
    )
    wishes = Wishes(
        near={key: source.near_duplicates for key, source in config.sources.items()},
        mix=config.extraction.mix,
        base_rows=found.base_rows,
        base_tokens=found.base_tokens,
    )
    progress = RowProgress(run.narrator)
    context = extraction_context.get()
    extraction_context.set(
        replace(context, known=found.known, wishes=wishes, on_progress=progress.tell)
    )
    run.narrator.stage("extract", f"{len(run.sources)} sources")
    with collect_rarely():  # rows come and go by the million, and leave no cycles
        receipts = await asyncio.gather(*(_extract_one(run, source) for source in run.sources))
    for receipt in receipts:
        run.narrator.note(describe_receipt(receipt))
    return receipts


def describe_receipt(receipt: ExtractReceipt) -> str:
    """Put the counts of a source in one line."""
    benchmarks = "".join(f", {n:,} of benchmark {name}" for name, n in receipt.benchmarks.items())
    return (
        f"{receipt.source}: {receipt.n_rows:,} rows, {receipt.n_prompts:,} prompts, "
        f"{receipt.n_rejected:,} rejected{benchmarks}, {receipt.n_not_sampled:,} not sampled"
    )


async def _extract_one(run: Run, source: ResolvedSource) -> ExtractReceipt:
    """Extract a source, or take the receipt of an earlier run whose objects are still there."""
    task, request_sha = run.persisted(extract_source), run.request.asked_sha
    receipt = await task(source, request_sha)
    if await run.store.run(has_extracted, run.store, receipt):
        return receipt
    return await task.with_options(refresh_cache=True)(source, request_sha)


class RowProgress:
    """Tells how many rows of each source were read, now and then; called from several threads."""

    def __init__(self, narrator: Narrator) -> None:
        self._narrator = narrator
        self._last: dict[str, float] = {}

    def tell(self, source: str, n_rows: int, seconds: float) -> None:
        """Take the rows of one source read so far, and the seconds that they took."""
        now = time.monotonic()
        if now - self._last.setdefault(source, now) >= _TOLD_EVERY_SECONDS:
            self._last[source] = now
            speed = n_rows / seconds if seconds else 0
            self._narrator.note(f"{source}: {n_rows:,} rows read, {speed:,.0f} rows/s")
