"""What goes into a merge, row by row: counted, held against the base, and handed to the shuffle.

Enters: canonical batches, the base's first, then the new samples'. Leaves: the composition before
and of what is new, and every count of what was left out. It exists apart from the merge so that
copying the base and referring to it differ in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from tasks.errors import BaseDatasetError
from tasks.report.composition import CompositionCounter
from tasks.tokens.config import BaseDatasetConfig, MergeConfig
from tasks.tokens.overlap import DigestSet, digest_ids, digest_prompts
from tasks.tokens.record import RETOKENIZED, name_conversation
from tasks.tokens.rows import read_lists, read_strings
from tasks.tokens.shuffle import FROM_BASE, FROM_SAMPLES, Shuffle


class Intake:
    """Takes rows into a shuffle.

    Attributes:
        before: Counts the base's rows.
        new: Counts the new samples that are taken.
        refused: Rows of a base of text that gave no sample, by why.
        n_zero_masks: Rows of the base that supervise nothing.
        n_superseded: New samples left out because a retry stands in for them.
        n_superseded_retokenized: Those of them whose ids were made of text.
        n_base_prompts: New samples whose prompt stands in the base.
        n_dropped: Those of them that were left out.
    """

    def __init__(self, shuffle: Shuffle, merge: MergeConfig, *, copies_base: bool) -> None:
        """Prepare; without copying, the base's rows are counted and not shuffled."""
        self._shuffle = shuffle
        self._copies_base = copies_base
        self._drops_base_prompts = merge.base_prompts == "drop"
        self._prompts = DigestSet()
        self._base_ids = DigestSet()
        self.before = CompositionCounter()
        self.new = CompositionCounter()
        self.refused: Counter[str] = Counter()
        self.n_zero_masks = 0
        self.n_superseded = 0
        self.n_superseded_retokenized = 0
        self.n_base_prompts = 0
        self.n_dropped = 0

    def add_base(self, batch: pa.RecordBatch) -> None:
        """Take rows of the base dataset; all of them come before the first sample."""
        self.n_zero_masks += _count(batch, self.before)
        self._prompts.add(digest_prompts(batch))
        if self._copies_base:
            self._shuffle.add(batch, FROM_BASE)
        else:
            # The shuffle, where rows with one id meet, will not see these.
            self._base_ids.add(digest_ids(batch))

    def check_base_ids(self, base: BaseDatasetConfig) -> None:
        """Hold the ids of a base that is not copied against each other.

        Raises:
            BaseDatasetError: One stands there twice.
        """
        if self._base_ids.has_twins:
            raise _shared_id(base.path, "two rows of the base dataset have one id")

    def add_samples(self, whole: pa.RecordBatch, left_out: Collection[str]) -> None:
        """Take new samples, but for those of the conversations `left_out`.

        Raises:
            BaseDatasetError: The base, which is not copied, has the id of one.
        """
        batch = _drop(whole, left_out) if left_out else whole
        self.n_superseded += whole.num_rows - batch.num_rows
        if batch is not whole:
            self.n_superseded_retokenized += _count_retokenized(whole) - _count_retokenized(batch)
        if not batch.num_rows:
            return
        repeats = self._prompts.contains(digest_prompts(batch))
        self.n_base_prompts += int(repeats.sum())
        if self._drops_base_prompts and repeats.any():
            self.n_dropped += int(repeats.sum())
            batch = batch.filter(pa.array(~repeats))
            if not batch.num_rows:
                return
        shared = np.flatnonzero(self._base_ids.contains(digest_ids(batch)))
        if len(shared):
            row_id = read_strings(batch, "id")[int(shared[0])]
            raise _shared_id(row_id, "the base dataset and the new samples share an id")
        _count(batch, self.new)
        self._shuffle.add(batch, FROM_SAMPLES)


def _count_retokenized(batch: pa.RecordBatch) -> int:
    return list(read_strings(batch, "token_source")).count(RETOKENIZED)


def _drop(batch: pa.RecordBatch, left_out: Collection[str]) -> pa.RecordBatch:
    """Leave the samples of some conversations out."""
    keep = [name_conversation(row_id) not in left_out for row_id in read_strings(batch, "id")]
    return batch.filter(pa.array(keep, pa.bool_()))


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


def _shared_id(where: str, what: str) -> BaseDatasetError:
    return BaseDatasetError(
        f"{what}.",
        where=where,
        remedy="Give every row of the base dataset an id of its own (base.id names the column).",
    )
