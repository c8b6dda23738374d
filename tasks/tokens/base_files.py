"""The files of a base dataset: which there are, what they hash to, and their rows in batches.

Enters: a .parquet or .jsonl file, a folder of them, or a folder that `datasets.save_to_disk` wrote.
Leaves: Arrow batches of a few hundred rows, or JSON lines with their row's number. Streamed; which
columns mean what is read elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import BaseDatasetError
from tasks.tokens.rows import ROW_GROUP_TOKENS

ROWS_AT_ONCE = 256
_BYTES_AT_ONCE = 8 * ROW_GROUP_TOKENS  # ids and mask of a token take about eight bytes as JSON
_STATE = "state.json"  # of save_to_disk: names the data files, in order


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows of a Parquet or Arrow file; `first` is the number of the first one in it."""

    where: Path
    first: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Lines of a JSONL file; `first` is the number of the first one in it."""

    where: Path
    first: int
    lines: list[bytes]


def list_base_files(path: str) -> list[Path]:
    """List the dataset's files in order.

    Raises:
        BaseDatasetError: There is none, or a saved dataset is not whole.
    """
    place = Path(path)
    if (place / _STATE).is_file():
        return _list_saved(place)
    found = [place] if place.is_file() else sorted(place.rglob("*")) if place.is_dir() else []
    files = [file for file in found if file.suffix in (".parquet", ".jsonl") and file.is_file()]
    if not files:
        raise BaseDatasetError(
            "there is no .parquet or .jsonl file, and no saved dataset, to merge with.",
            where=path,
            remedy="Set base.path to the base dataset's file or folder; of a saved dataset with "
            "several splits name one split's folder.",
        )
    return files


def hash_files(path: str) -> str:
    """Hash the dataset: its files' names and bytes, in order.

    Raises:
        BaseDatasetError: There is no file to read.
    """
    digest = hashlib.sha256()
    for file_path in list_base_files(path):
        with file_path.open("rb") as file:
            name = os.fsencode(
                file_path.relative_to(path) if file_path != Path(path) else file_path.name
            )
            digest.update(name + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[ArrowRows | JsonRows]:
    """Read one file in batches; of Parquet and Arrow only the columns asked for.

    Raises:
        BaseDatasetError: The file cannot be read, or a column is missing.
    """
    if path.suffix == ".jsonl":
        yield from _read_lines(path)
        return
    first = 0
    try:
        for batch in (
            _read_parquet(path, columns)
            if path.suffix == ".parquet"
            else _read_arrow(path, columns)
        ):
            yield ArrowRows(path, first, batch)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        kind = "Parquet" if path.suffix == ".parquet" else "an Arrow stream"
        raise BaseDatasetError(
            f"the file cannot be read as {kind} ({type(error).__name__}).", where=str(path)
        ) from error


def check_columns(wanted: Sequence[str], there: Sequence[str], where: object) -> None:
    """Hold the columns asked for against those that are there.

    Raises:
        BaseDatasetError: One is missing; those that are there are named.
    """
    missing = [name for name in wanted if name not in there]
    if missing:
        raise BaseDatasetError(
            f"column {missing[0]!r} is missing; there are {', '.join(map(repr, there[:20]))}.",
            where=str(where),
            remedy="Name the dataset's own columns under base (id, input_ids, loss_mask, ...).",
        )


def _list_saved(folder: Path) -> list[Path]:
    try:
        state = json.loads((folder / _STATE).read_bytes())
        files = [folder / entry["filename"] for entry in state["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise BaseDatasetError(
            f"the saved dataset does not name its files ({type(error).__name__}).",
            where=str(folder / _STATE),
        ) from error
    missing = [file for file in files if not file.is_file()]
    if missing or not files:
        raise BaseDatasetError(
            "the saved dataset is not whole: a file that it names is missing.",
            where=str(missing[0] if missing else folder / _STATE),
        )
    return files


def _read_parquet(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        check_columns(columns, file.schema_arrow.names, path)
        yield from file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(columns))


def _read_arrow(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        check_columns(columns, reader.schema.names, path)
        for batch in reader:
            chosen = batch.select(list(columns))
            for start in range(0, chosen.num_rows, ROWS_AT_ONCE):
                yield chosen.slice(start, ROWS_AT_ONCE)


def _read_lines(path: Path) -> Iterator[JsonRows]:
    lines: list[bytes] = []
    n_bytes = first = 0
    with path.open("rb") as file:
        for line in file:
            lines.append(line)
            n_bytes += len(line)
            if n_bytes >= _BYTES_AT_ONCE:
                yield JsonRows(path, first, lines)
                first, n_bytes, lines = first + len(lines), 0, []
    if lines:
        yield JsonRows(path, first, lines)
