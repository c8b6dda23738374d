"""All samples and the base dataset to one shuffled dataset of shards.

Enters: receipts of tokens parts, the base dataset. Leaves: shards under the dataset's revision, the
composition before and after. It exists to merge more rows than fit in memory, in an order that
depends on the seed and the ids alone: rows are scattered over buckets by the hash that orders
them, then each bucket is sorted and written in turn. Nothing is published before all is sound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tasks.chat.template import ChatTemplate
from tasks.errors import AccountingError, BaseDatasetError
from tasks.prompts.record import Plan
from tasks.report.composition import Composition
from tasks.storage.layout import parse_data_key, shard_key
from tasks.storage.record import ShardReceipt
from tasks.storage.scratch import open_scratch
from tasks.storage.store import ArtifactStore
from tasks.tokens.base import estimate_tokens, hash_base, iter_base
from tasks.tokens.config import BaseDatasetConfig, MergeConfig
from tasks.tokens.intake import Intake
from tasks.tokens.pace import Pace, Tell
from tasks.tokens.parts import fetch_samples
from tasks.tokens.record import BaseReference, MergeReceipt, SamplesReceipt
from tasks.tokens.rows import iter_batches
from tasks.tokens.shuffle import FROM_BASE, FROM_SAMPLES, DuplicateId, ShardWriter, Shuffle


def merge_dataset(  # noqa: PLR0917
    store: ArtifactStore,
    plan: Plan,
    samples: Sequence[SamplesReceipt],
    base: BaseDatasetConfig | None,
    merge: MergeConfig,
    revision: int,
    *,
    template: ChatTemplate,
    scratch_dir: Path,
    superseded: Mapping[str, Sequence[str]] | None = None,
    base_sha256: str | None = None,
    tell: Tell | None = None,
) -> MergeReceipt:
    """Merge, shuffle and publish one revision of the dataset.

    Args:
        store: The run's store.
        plan: Of which every chunk must have its samples.
        samples: One receipt a data part that counts, of chunks and of retries.
        base: The dataset to merge with; None for the new samples alone.
        merge: Seed of the shuffle, rows a shard, and what becomes of the base's rows and prompts.
        revision: Of the dataset.
        template: The target's.
        superseded: Key of a data part to its conversations (`sample_id` without the generation)
            that a retry stands in for: their samples are left out.
        base_sha256: What the base dataset hashed to when the run began; None to believe it.
        scratch_dir: Folder on a disk with room for about twice the dataset.
        tell: Takes a line of progress now and then.

    Raises:
        AccountingError: Rows in are not rows out, or a chunk has no samples part.
        BaseDatasetError: The base dataset cannot be read, mapped or merged.
        CorruptPart: A tokens part is not what its receipt says.
        KeyTaken: Another dataset stands at this revision.
    """
    _check_complete(plan, samples)
    found_sha256 = "" if base is None else hash_base(base)
    if base is not None and base_sha256 not in (None, found_sha256):
        raise BaseDatasetError(
            "the base dataset has changed since the run began.",
            where=base.path,
            remedy="Restore it, or start a run with another store.uri.",
        )
    copies = base is not None and merge.base_rows == "copy"
    n_tokens = sum(receipt.n_tokens for receipt in samples)
    if base is not None and copies:
        n_tokens += estimate_tokens(base)
    with open_scratch(scratch_dir) as folder:
        with Shuffle(folder, merge.seed, n_tokens) as shuffle:
            intake = Intake(shuffle, merge, copies_base=copies)
            if base is not None:
                pace = Pace("reading the base", tell)
                for batch in iter_base(
                    base, template, thinking=plan.thinking, refused=intake.refused
                ):
                    intake.add_base(batch)
                    pace.step(batch.num_rows)
                if not copies:
                    intake.check_base_ids(base)
            pace = Pace("reading new samples", tell, sum(receipt.n_samples for receipt in samples))
            for receipt in samples:
                left_out = frozenset((superseded or {}).get(receipt.data_key, ()))
                _add_samples(store, receipt, folder, intake, left_out)
                pace.step(receipt.n_samples)
            before, new = intake.before.freeze(), intake.new.freeze()
            after = Composition.sum([before, new])
            n_written = (after if copies else new).total.n_rows
            with ShardWriter(folder, merge.rows_per_shard) as writer:
                try:
                    shuffle.write(writer, Pace("shuffling", tell, n_written))
                except DuplicateId as error:
                    raise _explain_duplicate(error, base) from error
        if writer.n_rows != n_written:
            raise AccountingError(
                f"{n_written} rows went into the merge and {writer.n_rows} came out.",
                where=f"{store.uri}/{shard_key(revision, 0)}",
            )
        pace = Pace("publishing shards", tell, n_written)
        shards: list[ShardReceipt] = []
        for index, (path, n_rows) in enumerate(writer.shards):
            shards.append(_publish(store, shard_key(revision, index), path, n_rows))
            pace.step(n_rows)
    total = after.total
    return MergeReceipt(
        shards=tuple(shards),
        counts={
            "n_base": before.total.n_rows,
            "n_base_zero_masks": intake.n_zero_masks,
            "n_base_refused": intake.refused.total(),
            "n_new": new.total.n_rows,
            "n_new_supervised_tokens": new.total.n_supervised_tokens,
            "n_superseded": intake.n_superseded,
            "n_superseded_retokenized": intake.n_superseded_retokenized,
            "n_base_prompts": intake.n_base_prompts,
            "n_dropped_prompts": intake.n_dropped,
            "n_rows": total.n_rows,
            "n_tokens": total.n_tokens,
            "n_supervised_tokens": total.n_supervised_tokens,
            "n_shards": len(shards),
        },
        base_composition=before,
        composition=after,
        base=None if base is None or copies else _refer(base, found_sha256, before.total.n_rows),
    )


def _refer(base: BaseDatasetConfig, sha256: str, n_rows: int) -> BaseReference:
    return BaseReference(dataset=base.model_dump(mode="json"), sha256=sha256, n_rows=n_rows)


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
    intake: Intake,
    left_out: Collection[str],
) -> None:
    path = folder / "samples.parquet"
    fetch_samples(store, receipt, path)
    n_rows = 0
    for batch in iter_batches(path):
        intake.add_samples(batch, left_out)
        n_rows += batch.num_rows
    path.unlink()
    if n_rows != receipt.n_samples:
        raise AccountingError(
            f"the part holds {n_rows} samples and its receipt says {receipt.n_samples}.",
            where=f"{store.uri}/{receipt.key}",
        )


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
