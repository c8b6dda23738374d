"""The canonical rows on disk: one Arrow schema for tokens parts and for the merged dataset.

Enters: ids and masks as flat arrays with lengths. Leaves: Arrow batches and Parquet files of
int32 ids and int8 masks, and Samples read back. It exists so that no file of ours has another
type: loaders refuse to concatenate int64 with int32, or large_list with list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.tokens.ids import Int8Array, Int32Array, Int64Array
from tasks.tokens.record import Sample

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
        pa.field("seq_len", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("token_source", pa.string(), nullable=False),
    ]
)
_NAMES = ("id", "source", "domain", "finish_reason", "token_source")
ROW_GROUP_TOKENS = 1 << 18
"""Tokens that are held at once while rows are made and written: about 25 MB with all copies."""

# The mask is not among them: two values compress to nothing either way, and a plain column is
# written in half the time.
_DICTIONARY_COLUMNS = ["source", "domain", "finish_reason", "token_source"]


def make_batch(
    *,
    ids: Sequence[str],
    sources: Sequence[str],
    domains: Sequence[str],
    flat_ids: Int32Array,
    flat_mask: Int8Array,
    seq_lens: Int64Array,
    finish_reasons: Sequence[str],
    token_sources: Sequence[str],
) -> pa.RecordBatch:
    """Make canonical rows; `flat_ids` and `flat_mask` have shape [sum(seq_lens)]."""
    offsets = np.zeros(len(seq_lens) + 1, dtype=np.int32)
    np.cumsum(seq_lens, out=offsets[1:])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.string()),
            pa.array(sources, pa.string()),
            pa.array(domains, pa.string()),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat_ids, pa.int32())),
            pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(flat_mask, pa.int8())),
            pa.array(seq_lens, pa.int32()),
            pa.array(finish_reasons, pa.string()),
            pa.array(token_sources, pa.string()),
        ],
        schema=SCHEMA,
    )


class RowWriter:
    """Writes canonical rows to a Parquet file, a row group a batch.

    Ids are stored byte-plane by byte-plane: the high bytes of token ids are nearly constant, so
    zstd makes the file smaller and is quicker at it than over plain integers.
    """

    def __init__(self, path: Path) -> None:
        """Open the file for writing."""
        self._writer = pq.ParquetWriter(
            path,
            SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS,  # type: ignore[arg-type]  # the stubs know bool only
            column_encoding={"input_ids.list.element": "BYTE_STREAM_SPLIT"},
            write_statistics=["id", "seq_len"],
            write_page_checksum=True,
        )
        self.n_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write one row group."""
        self._writer.write_batch(batch, row_group_size=max(batch.num_rows, 1))
        self.n_rows += batch.num_rows

    def set_metadata(self, metadata: dict[str, str]) -> None:
        """Add key-value metadata to the file's footer."""
        self._writer.add_key_value_metadata(metadata)

    def close(self) -> None:
        """End the file with its footer."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Closes(Protocol):
    def close(self) -> None: ...


Writer = TypeVar("Writer", bound=_Closes)


class FileSeries(Generic[Writer]):
    """Files written one after the other, of which one is open at most; a context manager."""

    def __init__(self) -> None:
        self._writer: Writer | None = None

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()


def iter_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Read canonical rows, a row group at a time; pages that were damaged raise OSError."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        for index in range(file.num_row_groups):
            yield from file.read_row_group(index).combine_chunks().to_batches()


def read_lists(batch: pa.RecordBatch, column: str) -> tuple[Int32Array, Int64Array]:
    """View a list column: all values, shape [n_values], and offsets, shape [n_rows + 1]."""
    lists = cast("pa.ListArray[Any]", batch.column(column))
    # Not by to_numpy(), which would import pandas.
    values, offsets = np.from_dlpack(lists.values), np.from_dlpack(lists.offsets)
    return cast("Int32Array", values), cast("Int64Array", offsets)


def read_strings(batch: pa.RecordBatch, column: str) -> list[str]:
    """Read a string column that has no nulls."""
    return cast("list[str]", batch.column(column).to_pylist())


def iter_rows(batch: pa.RecordBatch) -> Iterator[Sample]:
    """Give the rows of a canonical batch as Samples that view its buffers."""
    flat_ids, offsets = read_lists(batch, "input_ids")
    flat_mask, _ = read_lists(batch, "loss_mask")
    names = (read_strings(batch, name) for name in _NAMES)
    for index, (row_id, source, domain, finish_reason, token_source) in enumerate(
        zip(*names, strict=True)
    ):
        start, end = offsets[index], offsets[index + 1]
        yield Sample(
            id=row_id,
            source=source,
            domain=domain,
            input_ids=flat_ids[start:end],
            loss_mask=flat_mask[start:end].astype(np.int8, copy=False),
            finish_reason=finish_reason,
            token_source=token_source,
        )
