"""Local files of rows: .jsonl, .jsonl.gz, .jsonl.zst, .parquet.

Enters: a path. Leaves: rows in order, read in bounded memory. It exists so that a broken line is a
counted row, a broken file is an error that names it, and a compressed file cannot swell in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import SourceError
from tasks.prompts.record import UnreadableRow

BATCH_ROWS = 256
_BOM = b"\xef\xbb\xbf"


def hash_file(path: Path) -> str:
    """Give the sha256 of a file.

    Raises:
        SourceError: It is missing or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise SourceError(
            f"the file cannot be read ({getattr(error, 'strerror', error)}).",
            where=str(path),
            remedy="Set the source's path to an existing .jsonl (.gz, .zst) or .parquet file.",
        ) from error


def read_file(path: Path, *, columns: Sequence[str], max_row_bytes: int) -> Iterator[object]:
    """Read the rows of a file in order; a bad line of JSONL is an UnreadableRow.

    Args:
        path: The file.
        columns: Dotted paths that the mapping uses; Parquet reads their columns alone.
        max_row_bytes: A longer line of JSONL is skipped without being held.

    Raises:
        SourceError: The file is damaged, or of another kind.
    """
    name = path.name.lower()
    if not name.endswith((".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst")):
        raise SourceError(
            "the file is none of .jsonl, .jsonl.gz, .jsonl.zst and .parquet.",
            where=str(path),
            remedy="Convert it to JSON lines (one object a line) or Parquet.",
        )
    try:
        if name.endswith(".parquet"):
            yield from _read_parquet(path, columns)
        else:
            yield from _read_lines(path, max_row_bytes)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise SourceError(
            f"the file is damaged or no {path.suffix} file ({type(error).__name__}).",
            where=str(path),
            remedy="Fetch or write the file again.",
        ) from error


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[object]:
    with pq.ParquetFile(path) as file:
        names = set(file.schema_arrow.names)
        heads = {column if column in names else column.partition(".")[0] for column in columns}
        # All columns where one is missing: the error that follows names the nearest.
        chosen = sorted(heads) if heads <= names else None
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=chosen, use_threads=False):
            yield from list_rows(batch)


def list_rows(batch: pa.RecordBatch) -> list[object]:
    """Turn a batch to rows; a row that has no Python form is an UnreadableRow of its own."""
    try:
        return cast("list[object]", batch.to_pylist())
    # A text that is no UTF-8, a time that Python has no type for: the other rows are sound.
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [UnreadableRow("not_text", f"a value cannot be read ({type(error).__name__})")]
        return [row for at in range(batch.num_rows) for row in list_rows(batch.slice(at, 1))]


def _read_lines(path: Path, max_row_bytes: int) -> Iterator[object]:
    with path.open("rb") as raw, _decompress(path, raw) as stream:
        first = True
        while line := stream.readline(max_row_bytes + 1):
            if first:
                line, first = line.removeprefix(_BOM), False
            if len(line) > max_row_bytes and not line.endswith(b"\n"):
                while (rest := stream.readline(max_row_bytes)) and not rest.endswith(b"\n"):
                    pass
                yield UnreadableRow("row_too_large", f"a line of over {max_row_bytes} bytes")
            elif line.strip():
                yield _parse_line(line)


def _decompress(path: Path, raw: IO[bytes]) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if suffix == ".zst":
        # Arrow's stream refuses a file that was cut off; zstandard's reader ends there in silence.
        stream = pa.CompressedInputStream(pa.PythonFile(cast("io.IOBase", raw), mode="r"), "zstd")
        return io.BufferedReader(cast("io.RawIOBase", stream))
    return raw


def _parse_line(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        # Python's own reader takes lone surrogates and NaN: what is wrong is told more exactly.
        try:
            return json.loads(line)
        except UnicodeDecodeError:
            return UnreadableRow("not_text", "the line is not UTF-8")
        except (ValueError, RecursionError):
            return UnreadableRow("not_an_object", "the line is no JSON")
