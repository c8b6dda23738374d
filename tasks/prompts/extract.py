"""One source's rows to prompts, rejections and what was left unsampled.

Enters: a resolved source. Leaves: Parquet parts of prompts in the run's order, one file of
rejections, one of all ids that were met, and a receipt whose numbers add up. It exists as one pass
over the source: conversations wait on the local disk, in memory stays a key for each, and only what
the quota takes is rendered.

Every key and every byte follows from the source's revision and the configuration alone, so a rerun
after a crash writes what is there already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import AccountingError
from tasks.prompts.benchmarks import load_benchmarks
from tasks.prompts.candidates import Candidates
from tasks.prompts.collect import Collector, TellRows, check_shape
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.filters import RowFilter
from tasks.prompts.known import NOTHING_KNOWN, KnownPrompts
from tasks.prompts.ledger import Ledger
from tasks.prompts.prompt_file import (
    EXTRACTED_SCHEMA,
    REJECTION_SCHEMA,
    SEEN_SCHEMA,
    Columns,
    RecordWriter,
    encode_record,
)
from tasks.prompts.record import ExtractReceipt, ResolvedSource
from tasks.prompts.sampling import Sampler
from tasks.prompts.sources import complete_source, iter_rows
from tasks.storage.layout import extracted_key, rejections_key, seen_key
from tasks.storage.scratch import open_scratch
from tasks.storage.store import ArtifactStore

PROMPTS_PER_PART = 10_000


def extract_prompts(
    store: ArtifactStore,
    source: ResolvedSource,
    config: SourceConfig,
    *,
    template: ChatTemplate,
    model: ModelConfig,
    extraction: ExtractionConfig,
    hf_token: str | None,
    spool_dir: Path,
    known: KnownPrompts = NOTHING_KNOWN,
    on_progress: TellRows | None = None,
) -> ExtractReceipt:
    """Extract one source into the store.

    Args:
        store: Where to.
        source: The source, pinned.
        config: How its rows are read.
        template: The target's tokenizer and chat template.
        model: The target.
        extraction: What holds for all sources.
        hf_token: Token for gated datasets.
        spool_dir: Local folder for work in progress.
        known: What earlier runs and the base dataset have.
        on_progress: Told now and then how many rows were read.

    Raises:
        SourceError: The source cannot be read, or every row was refused for its shape: then the
            mapping is at fault and not the rows, and to go on without the source would be a run
            that nobody asked for. A source whose rows were all filtered out is no error.
        AccountingError: Rows in are not rows out.
        KeyTaken: Another extraction stands at this prefix.
    """
    config = complete_source(source.key, config)
    benchmarks = load_benchmarks(extraction)
    row_filter = RowFilter(
        config, extraction, special_names=template.special_names, benchmarks=benchmarks
    )
    rows = iter_rows(source, config, hf_token, max_row_bytes=extraction.max_row_bytes)
    with open_scratch(spool_dir) as folder:
        with (
            Candidates(folder / "candidates") as candidates,
            RecordWriter(folder / "rejections", REJECTION_SCHEMA) as rejections,
            RecordWriter(folder / "seen", SEEN_SCHEMA) as seen,
        ):
            ledger = Ledger(rejections, seen)
            collector = Collector(source.key, config, row_filter, ledger, candidates, known)
            n_rows = collector.collect(rows, extraction.seed, on_progress)
            check_shape(source, n_rows, ledger.n_rejected)
            sampler = Sampler(source, config, candidates, ledger, known)
            records = sampler.render(template, model, extraction)
            part_keys, sha256 = _publish_parts(store, source.key, records, folder / "part")
            sampler.leave_rest()
        receipt = ExtractReceipt(
            source=source.key,
            revision=source.revision,
            n_rows=n_rows,
            n_prompts=sampler.n_prompts,
            n_rejected=ledger.n_rejected.total(),
            n_not_sampled=ledger.n_not_sampled,
            rejections=dict(sorted(ledger.n_rejected.items())),
            examples={kind: tuple(rows) for kind, rows in sorted(ledger.examples.items())},
            benchmarks={name: ledger.benchmarks[name] for name in extraction.benchmarks},
            part_keys=part_keys,
            rejections_key=rejections_key(source.key),
            seen_key=seen_key(source.key),
            sha256=sha256,
        )
        check_accounting(receipt)
        store.create_file(receipt.rejections_key, folder / "rejections")
        store.create_file(receipt.seen_key, folder / "seen")
    return receipt


def has_extracted(store: ArtifactStore, receipt: ExtractReceipt) -> bool:
    """Whether every object of an extraction is in the store; a kept receipt does not prove it."""
    keys = (*receipt.part_keys, receipt.rejections_key, receipt.seen_key)
    return all(store.head(key) is not None for key in keys)


def check_accounting(receipt: ExtractReceipt) -> None:
    """Check that every row read is a prompt, a rejection or not sampled, and is so once.

    Raises:
        AccountingError: The numbers do not add up.
    """
    n_out = receipt.n_prompts + receipt.n_rejected + receipt.n_not_sampled
    if n_out != receipt.n_rows or sum(receipt.rejections.values()) != receipt.n_rejected:
        raise AccountingError(
            f"{receipt.n_rows} rows were read, but {receipt.n_prompts} prompts, "
            f"{receipt.n_rejected} rejections and {receipt.n_not_sampled} not sampled came out.",
            where=f"source {receipt.source}",
        )


def _publish_parts(
    store: ArtifactStore, source_key: str, records: Iterator[Columns], path: Path
) -> tuple[tuple[str, ...], str]:
    """Write the records to parts; gives the parts' keys and the hash over all records."""
    digest = hashlib.sha256()
    part_keys: list[str] = []
    record = next(records, None)
    while record is not None:
        with RecordWriter(path, EXTRACTED_SCHEMA) as part:
            while record is not None and part.n_rows < PROMPTS_PER_PART:
                digest.update(encode_record(record))
                part.append(record)
                record = next(records, None)
        part_keys.append(extracted_key(source_key, len(part_keys)))
        store.create_file(part_keys[-1], path)
    return tuple(part_keys), digest.hexdigest()
