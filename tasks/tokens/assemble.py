"""One data part to training samples: the exact ids, with mask 0 on prompts and 1 on answers.

Enters: a part of outcomes, the chunk's prompts, the target's template. Leaves: one Parquet file of
Samples under the tokens key, and its receipt. It exists so that a drafter is trained on the very
ids that the target sampled, and so that a mask or a tokenizer gone wrong stops the run here.

"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.chat.template import ChatTemplate
from tasks.errors import CorruptPart, KeyTaken, ModelError
from tasks.prompts.record import Chunk, Plan, canonical_sha256
from tasks.storage.layout import tokens_key
from tasks.storage.part import iter_rows, peek
from tasks.storage.record import PartReceipt
from tasks.storage.retry import RetryPart
from tasks.storage.store import ArtifactStore
from tasks.tokens.asked import read_asked
from tasks.tokens.config import TokensConfig
from tasks.tokens.outcomes import Assembly
from tasks.tokens.parts import fetch_samples, find_receipt, write_receipt
from tasks.tokens.record import Sample, SamplesReceipt
from tasks.tokens.rows import RowWriter, iter_batches
from tasks.tokens.rows import iter_rows as iter_batch_rows

_log = logging.getLogger(__name__)

# Raised by hand whenever assembly would give other samples for the same outcomes.
TOKENS_CODE_VERSION = 2


def assemble_part(  # noqa: PLR0917
    store: ArtifactStore,
    plan: Plan,
    chunk: Chunk | RetryPart,
    receipt: PartReceipt,
    template: ChatTemplate,
    config: TokensConfig,
) -> SamplesReceipt:
    """Make the samples of one data part, or find them made before under the same settings.

    Args:
        store: The run's store.
        plan: That the part answers.
        chunk: The chunk, or the share of a retry, whose outcomes the part holds.
        receipt: Of the data part.
        template: Of the target.
        config: Token settings.

    Raises:
        MaskError: A sample supervises nothing, or too many supervise next to nothing.
        TokenMismatch: Ids disagree with the text, or lie outside the vocabulary.
        AccountingError: The part has not one outcome for each conversation of the chunk.
        CorruptPart: A stored object is not what its receipt says.
        ModelError: The template's tokenizer is not the plan's.
    """
    _check_inputs(store, plan, chunk, receipt, template)
    with TemporaryDirectory(prefix="draftmill-tokens-") as scratch:
        folder = Path(scratch)
        there, key = _find_or_name(store, plan, receipt, config, folder)
        if there is not None:
            return there
        path = folder / "samples.parquet"
        with RowWriter(path) as writer:
            assembly = Assembly(
                writer=writer,
                plan=plan,
                asked=read_asked(store, plan, chunk),
                where=receipt.key,
                template=template,
                config=config,
            )
            assembly.run(iter_rows(store, receipt.key))
            made = assembly.tell(key, receipt)
            write_receipt(writer, made)
        try:
            stat = store.create_file(key, path)
        except KeyTaken:
            # Another process made the same rows; a Parquet file's bytes may differ by version.
            there = find_receipt(store, key, folder)
            if there is None:
                raise
            return there
        return made.model_copy(update={"sha256": stat.sha256, "n_bytes": stat.n_bytes})


def iter_samples(store: ArtifactStore, receipt: SamplesReceipt) -> Iterator[Sample]:
    """Read the samples of a tokens part back, streamed.

    Raises:
        CorruptPart: The stored part is not what its receipt says.
    """
    with TemporaryDirectory(prefix="draftmill-tokens-") as folder:
        path = Path(folder) / "samples.parquet"
        fetch_samples(store, receipt, path)
        for batch in iter_batches(path):
            yield from iter_batch_rows(batch)


def find_samples(
    store: ArtifactStore, plan: Plan, receipt: PartReceipt, config: TokensConfig
) -> SamplesReceipt | None:
    """Find the sound samples of a data part under these settings; None if there are none."""
    with TemporaryDirectory(prefix="draftmill-tokens-") as scratch:
        return _find_or_name(store, plan, receipt, config, Path(scratch))[0]


def _find_or_name(
    store: ArtifactStore, plan: Plan, receipt: PartReceipt, config: TokensConfig, folder: Path
) -> tuple[SamplesReceipt | None, str]:
    """Find the first sound revision of a tokens part, or the key where it may be written.

    The key is made of the settings, the tokenizer and the data part's bytes. Revisions follow each
    other without a gap, and only a damaged one has a successor.
    """
    digest = canonical_sha256(
        [TOKENS_CODE_VERSION, config.model_dump(mode="json"), plan.tokenizer_sha256]
    )
    revision = 0
    while True:
        key = tokens_key(digest[:16], receipt.key, receipt.sha256, revision)
        try:
            # What verification found damaged may still be readable.
            if key not in store.damaged:
                return find_receipt(store, key, folder), key
        except CorruptPart as error:
            _log.warning("passing over damaged samples: %s", error)
        revision += 1


def _check_inputs(
    store: ArtifactStore,
    plan: Plan,
    chunk: Chunk | RetryPart,
    receipt: PartReceipt,
    template: ChatTemplate,
) -> None:
    if template.tokenizer_sha256 != plan.tokenizer_sha256:
        raise ModelError(
            "the tokenizer at hand is not the one that the plan was made with.",
            where=f"{template.tokenizer_sha256[:12]} instead of {plan.tokenizer_sha256[:12]}",
            remedy="Set model.tokenizer and model.revision as they were when the run began.",
        )
    header, footer = peek(store, receipt.key)
    if (header, footer) != (receipt.header, receipt.footer):
        raise CorruptPart(
            "the data part is not what its receipt says.", where=f"{store.uri}/{receipt.key}"
        )
    if (header.plan_sha, header.input_sha256) != (plan.sha, chunk.input_sha256):
        raise CorruptPart(
            "the data part answers another plan or other prompts.",
            where=f"{store.uri}/{receipt.key}",
        )
