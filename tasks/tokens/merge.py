"""All samples and the base dataset to one shuffled dataset of shards.

Enters: receipts of tokens parts, the base dataset. Leaves: shards under the dataset's revision, the
composition before and after. It exists to merge more rows than fit in memory, in an order that
depends on the seed and the ids alone: rows are scattered over buckets by the hash that orders
them, then each bucket is sorted and written in turn. Nothing is published before all is sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tasks.errors import AccountingError, BaseDatasetError
from tasks.prompts.record import Plan
from tasks.report.composition import Composition, CompositionCounter
from tasks.storage.layout import parse_data_key, shard_key
from tasks.storage.record import ShardReceipt
from tasks.storage.store import ArtifactStore
from tasks.tokens.base import estimate_tokens, hash_base, iter_base
from tasks.tokens.config import BaseDatasetConfig, MergeConfig
from tasks.tokens.parts import fetch_samples
from tasks.tokens.record import MergeReceipt, SamplesReceipt
from tasks.tokens.rows import iter_batches, read_lists, read_strings
from tasks.tokens.shuffle import FROM_BASE, FROM_SAMPLES, DuplicateId, ShardWriter, Shuffle


def merge_dataset(  # noqa: PLR0917
    store: ArtifactStore,
    plan: Plan,
    samples: Sequence[SamplesReceipt],
    base: BaseDatasetConfig | None,
    merge: MergeConfig,
    revision: int,
    *,
    vocab_size: int,
    base_sha256: str | None = None,
    scratch_dir: Path | None = None,
) -> MergeReceipt:
    """Merge, shuffle and publish one revision of the dataset.

    Args:
        store: The run's store.
        plan: Of which every chunk must have its samples.
        samples: One receipt a data part that counts.
        base: The dataset to merge with; None for the new samples alone.
        merge: Seed of the shuffle, rows a shard.
        revision: Of the dataset.
        vocab_size: Of the target's tokenizer.
        base_sha256: What the base dataset hashed to when the run began; None to believe it.
        scratch_dir: Folder for about twice the dataset's size; None for the system's own.

    Raises:
        AccountingError: Rows in are not rows out, or a chunk has no samples part.
        BaseDatasetError: The base dataset cannot be read, mapped or merged.
        CorruptPart: A tokens part is not what its receipt says.
        KeyTaken: Another dataset stands at this revision.
    """
    _check_complete(plan, samples)
    if base is not None and base_sha256 not in (None, hash_base(base)):
        raise BaseDatasetError(
            "the base dataset has changed since the run began.",
            where=base.path,
            remedy="Restore it, or start a run with another store.uri.",
        )
    n_tokens = sum(receipt.n_tokens for receipt in samples)
    if base is not None:
        n_tokens += estimate_tokens(base)
    with TemporaryDirectory(prefix="draftmill-merge-", dir=scratch_dir) as scratch:
        folder = Path(scratch)
        before, new = CompositionCounter(), CompositionCounter()
        with Shuffle(folder, merge.seed, n_tokens) as shuffle:
            n_zero_masks = 0
            for batch in iter_base(base, vocab_size) if base is not None else ():
                n_zero_masks += _count(batch, before)
                shuffle.add(batch, FROM_BASE)
            for receipt in samples:
                _add_samples(store, receipt, folder, shuffle, new)
            base_composition, composition = before.freeze(), new.freeze()
            merged = Composition.sum([base_composition, composition])
            with ShardWriter(folder, merge.rows_per_shard) as writer:
                try:
                    shuffle.write(writer)
                except DuplicateId as error:
                    raise _explain_duplicate(error, base) from error
        n_rows = merged.total.n_rows
        if writer.n_rows != n_rows:
            raise AccountingError(
                f"{n_rows} rows went into the merge and {writer.n_rows} came out.",
                where=f"{store.uri}/{shard_key(revision, 0)}",
            )
        shards = tuple(
            _publish(store, shard_key(revision, index), path, n_rows_of_shard)
            for index, (path, n_rows_of_shard) in enumerate(writer.shards)
        )
    total = merged.total
    return MergeReceipt(
        shards=shards,
        counts={
            "n_base": base_composition.total.n_rows,
            "n_base_zero_masks": n_zero_masks,
            "n_new": composition.total.n_rows,
            "n_rows": total.n_rows,
            "n_tokens": total.n_tokens,
            "n_supervised_tokens": total.n_supervised_tokens,
            "n_shards": len(shards),
        },
        base_composition=base_composition,
        composition=merged,
    )


def _check_complete(plan: Plan, samples: Sequence[SamplesReceipt]) -> None:
    parsed = [parse_data_key(receipt.data_key) for receipt in samples]
    missing = {chunk.id for chunk in plan.chunks} - {place[0] for place in parsed if place}
    if missing:
        raise AccountingError(
            f"{len(missing)} of {len(plan.chunks)} chunks have no samples, the first of them "
            f"chunk {min(missing)}.",
            remedy="Run again: the chunks that lack a part are generated, and no others.",
        )


def _add_samples(
    store: ArtifactStore,
    receipt: SamplesReceipt,
    folder: Path,
    shuffle: Shuffle,
    counter: CompositionCounter,
) -> None:
    path = folder / "samples.parquet"
    fetch_samples(store, receipt, path)
    n_rows = 0
    for batch in iter_batches(path):
        _count(batch, counter)
        shuffle.add(batch, FROM_SAMPLES)
        n_rows += batch.num_rows
    path.unlink()
    if n_rows != receipt.n_samples:
        raise AccountingError(
            f"the part holds {n_rows} samples and its receipt says {receipt.n_samples}.",
            where=f"{store.uri}/{receipt.key}",
        )


def _count(batch: pa.RecordBatch, counter: CompositionCounter) -> int:
    """Count a batch's rows; give how many supervise nothing."""
    mask, offsets = read_lists(batch, "loss_mask")
    supervised = np.add.reduceat(mask, offsets[:-1], dtype=np.int64)
    rows = zip(
        read_strings(batch, "domain"),
        read_strings(batch, "source"),
        np.diff(offsets).tolist(),
        supervised.tolist(),
        strict=True,
    )
    for domain, source, n_tokens, n_supervised in rows:
        counter.add(domain, source, n_tokens, n_supervised)
    return int((supervised == 0).sum())


def _publish(store: ArtifactStore, key: str, path: Path, n_rows: int) -> ShardReceipt:
    stat = store.create_file(key, path)
    return ShardReceipt(key=key, sha256=str(stat.sha256), n_bytes=stat.n_bytes, n_rows=n_rows)


def _explain_duplicate(
    error: DuplicateId, base: BaseDatasetConfig | None
) -> AccountingError | BaseDatasetError:
    if FROM_BASE not in error.origins or base is None:
        return AccountingError(f"two new samples have the id {error.row_id!r}.")
    where_else = "twice" if FROM_SAMPLES not in error.origins else "and the new samples have it too"
    return BaseDatasetError(
        f"the base dataset has the id {error.row_id!r} {where_else}.",
        where=base.path,
        remedy="Give every row of the base dataset an id of its own (base.id names the column).",
    )
