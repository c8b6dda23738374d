"""A shuffle of more rows than fit in memory, in an order that only seed and ids decide.

Enters: canonical batches in any order. Leaves: local shard files, sorted by hash(seed, id). It
exists apart from the merge because it is its one algorithm: scatter over buckets by the hash's
high bits, then sort each bucket, where rows with one id meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.tokens.pace import Pace
from tasks.tokens.rows import (
    ROW_GROUP_TOKENS,
    SCHEMA,
    FileSeries,
    RowWriter,
    read_lists,
    read_strings,
)

FROM_BASE = 0
FROM_SAMPLES = 1

_BUCKET_TOKENS = 8 << 20
_SCATTER_TOKENS = 4 << 20
_MOST_BUCKETS = 256  # each is an open file

_SPILLED = (
    SCHEMA.append(pa.field("origin", pa.int8()))
    .append(pa.field("high", pa.uint64()))
    .append(pa.field("low", pa.uint64()))
)


class DuplicateId(ValueError):
    """Two rows have one id; `origins` says where the two come from."""

    def __init__(self, row_id: str, origins: frozenset[int]) -> None:
        super().__init__(row_id)
        self.row_id = row_id
        self.origins = origins


class ShardWriter(FileSeries[RowWriter]):
    """Writes rows to local shards of `rows_per_shard` rows; `shards` are (path, n_rows)."""

    def __init__(self, folder: Path, rows_per_shard: int) -> None:
        super().__init__()
        self._folder = folder
        self._rows_per_shard = rows_per_shard
        self.shards: list[tuple[Path, int]] = []
        self.n_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows, in row groups of bounded tokens."""
        start = 0
        ends = np.cumsum(batch.column("seq_len").to_numpy(), dtype=np.int64)
        while start < batch.num_rows:
            if self._writer is None:
                path = self._folder / f"shard-{len(self.shards):06d}.parquet"
                self._writer = RowWriter(path)
                self.shards.append((path, 0))
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + ROW_GROUP_TOKENS, side="right"))
            n_free = self._rows_per_shard - self._writer.n_rows
            n_taken = min(max(stop - start, 1), n_free)
            self._writer.write(batch.slice(start, n_taken))
            start += n_taken
            self.n_rows += n_taken
            self.shards[-1] = (self.shards[-1][0], self._writer.n_rows)
            if n_taken == n_free:
                self._close()


class Shuffle:
    """Takes batches in any order, gives them back in the order of hash(seed, id)."""

    def __init__(self, folder: Path, seed: int, n_tokens: int) -> None:
        """Prepare buckets.

        Args:
            folder: For the buckets' files.
            seed: Of the order.
            n_tokens: About how many tokens will come: it sets the number of buckets.
        """
        self._seed = seed.to_bytes(8, "big", signed=False)
        wanted = min(max(n_tokens // _BUCKET_TOKENS, 1), _MOST_BUCKETS)
        self._n_bits = (wanted - 1).bit_length()
        self._paths = [folder / f"bucket-{i:03d}.arrow" for i in range(1 << self._n_bits)]
        self._stack = ExitStack()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writers = [
            self._stack.enter_context(pa.ipc.new_stream(str(path), _SPILLED, options=options))
            for path in self._paths
        ]
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting_tokens = 0

    def add(self, batch: pa.RecordBatch, origin: int) -> None:
        """Take canonical rows."""
        hashes = self._hash(read_strings(batch, "id"))
        columns = [
            *batch.columns,
            pa.array(np.full(batch.num_rows, origin, dtype=np.int8)),
            pa.array(hashes[:, 0]),
            pa.array(hashes[:, 1]),
        ]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=_SPILLED))
        self._n_waiting_tokens += int(read_lists(batch, "input_ids")[1][-1])
        if self._n_waiting_tokens >= _SCATTER_TOKENS:
            self._scatter()

    def write(self, writer: ShardWriter, pace: Pace) -> None:
        """Write all rows in order; the buckets' files go as they are used up.

        Raises:
            DuplicateId: Two rows have one id.
        """
        self._scatter()
        self._stack.close()
        for path in self._paths:
            for batch in _sort(path):
                writer.write(batch)
                pace.step(batch.num_rows)
            path.unlink()

    def _hash(self, ids: list[str]) -> npt.NDArray[np.uint64]:
        digests = b"".join(
            blake2b(row_id.encode(), digest_size=16, key=self._seed).digest() for row_id in ids
        )
        return np.frombuffer(digests, dtype=">u8").astype(np.uint64).reshape(-1, 2)

    def _scatter(self) -> None:
        """Sort what waits into buckets: many rows at once, so that no bucket gets crumbs."""
        if not self._waiting:
            return
        table = pa.Table.from_batches(self._waiting).combine_chunks()
        self._waiting = []
        self._n_waiting_tokens = 0
        high = table.column("high").to_numpy()
        buckets = (
            (high >> np.uint64(64 - self._n_bits)).astype(np.int64)
            if self._n_bits
            else np.zeros(len(high), dtype=np.int64)
        )
        order = np.argsort(buckets, kind="stable")
        table = table.take(order)
        bounds = np.searchsorted(buckets[order], np.arange(len(self._paths) + 1))
        for bucket, writer in enumerate(self._writers):
            start, end = int(bounds[bucket]), int(bounds[bucket + 1])
            if end > start:
                writer.write_table(table.slice(start, end - start))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def _sort(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(pa.OSFile(str(path), "rb")) as reader:
        table = reader.read_all().combine_chunks()
    high, low = table.column("high").to_numpy(), table.column("low").to_numpy()
    order = np.lexsort((low, high))
    same = np.flatnonzero(
        (high[order[1:]] == high[order[:-1]]) & (low[order[1:]] == low[order[:-1]])
    )
    if len(same):
        pair = order[same[0] : same[0] + 2]
        origins = table.column("origin").to_numpy()[pair]
        raise DuplicateId(
            str(table.column("id")[int(pair[0])].as_py()), frozenset(int(o) for o in origins)
        )
    yield from table.take(order).select(SCHEMA.names).combine_chunks().to_batches()
