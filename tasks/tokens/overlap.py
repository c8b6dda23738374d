"""What new samples share with the base dataset: prompts, id for id, and ids of rows.

Enters: canonical batches, the base's first. Leaves: which new rows repeat a prompt of the base, or
the first id that stands in both. It exists because the base may have ids only: its prompt is what
comes before the first supervised token. Eight bytes a base row are held, whatever its length; at a
million rows the odds that two prompts share them are one in ten million. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.tokens.rows import read_lists, read_strings

_Digests = npt.NDArray[np.uint64]


class DigestSet:
    """A set of 64-bit digests that takes batches first and is asked afterwards."""

    def __init__(self) -> None:
        self._batches: list[_Digests] = []
        self._sorted: _Digests | None = None

    def add(self, digests: _Digests) -> None:
        """Take digests; none may be added once it was asked."""
        self._batches.append(digests)

    def contains(self, digests: _Digests) -> npt.NDArray[np.bool_]:
        """Tell for each digest whether it was added. Shape [n_digests]."""
        held = self._sort()
        if not len(held):
            return np.zeros(len(digests), dtype=np.bool_)
        places = np.minimum(np.searchsorted(held, digests), len(held) - 1)
        found: npt.NDArray[np.bool_] = held[places] == digests
        return found

    @property
    def has_twins(self) -> bool:
        """Whether one digest was added twice."""
        held = self._sort()
        return bool((held[1:] == held[:-1]).any())

    def _sort(self) -> _Digests:
        if self._sorted is None:
            self._sorted = np.sort(np.concatenate([np.zeros(0, np.uint64), *self._batches]))
            self._batches = []
        return self._sorted


def digest_prompts(batch: pa.RecordBatch) -> _Digests:
    """Digest each row's ids before its first supervised one; 0 for a row that supervises nothing.

    Returns:
        Shape [n_rows].
    """
    ids, offsets = read_lists(batch, "input_ids")
    mask, _ = read_lists(batch, "loss_mask")
    supervised = np.flatnonzero(mask)
    places = np.searchsorted(supervised, offsets[:-1])
    ends = np.append(supervised, len(mask))[places]
    data = np.ascontiguousarray(ids).view(np.uint8)
    return _digest(
        data[4 * start : 4 * end].tobytes() if end < stop else None
        for start, end, stop in zip(offsets[:-1], ends, offsets[1:], strict=True)
    )


def digest_ids(batch: pa.RecordBatch) -> _Digests:
    """Digest each row's id. Shape [n_rows]."""
    return _digest(row_id.encode() for row_id in read_strings(batch, "id"))


def _digest(texts: Iterable[bytes | None]) -> _Digests:
    digests = (
        b"\0" * 8 if text is None else blake2b(text, digest_size=8).digest() for text in texts
    )
    return np.frombuffer(b"".join(digests), dtype=np.uint64)
