"""The base dataset, read as canonical rows and refused where it is another kind of data.

Enters: a .parquet or .jsonl file or a folder of them, with the user's column names. Leaves: batches
of the canonical schema, and a hash that pins the dataset in the request. It exists because other
writers use int64 and large_list, and because rows of another tokenizer merge without a sound.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import BaseDatasetError
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.ids import BadIds, parse_id_arrays
from tasks.tokens.rows import ROW_GROUP_TOKENS, make_batch

UNKNOWN_SOURCE = "base"
UNKNOWN_DOMAIN = "unlabelled"
UNKNOWN_FINISH = "unknown"

_ROWS_AT_ONCE = 256
_BYTES_AT_ONCE = 8 * ROW_GROUP_TOKENS  # ids and mask of a token take about eight bytes as JSON
_INT32_MAX = np.iinfo(np.int32).max

_IntArray = npt.NDArray[np.integer]
_decode_line = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_name = msgspec.json.Decoder(str | int).decode


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows as read, unchecked; `where` is the file, `first` the first row's number in it."""

    where: Path
    first: int
    ids: list[str]
    sources: list[str]
    domains: list[str]
    flat_ids: _IntArray
    n_ids: npt.NDArray[np.int64]
    flat_mask: _IntArray
    n_mask: npt.NDArray[np.int64]

    def name(self, index: int) -> str:
        return f"{self.where}, row {self.first + index}"


def hash_base(base: BaseDatasetConfig) -> str:
    """Hash the base dataset: its files' names and bytes, in order.

    Raises:
        BaseDatasetError: There is no file to read.
    """
    digest = hashlib.sha256()
    for path in _list_files(base):
        with path.open("rb") as file:
            name = os.fsencode(
                path.relative_to(base.path) if path != Path(base.path) else path.name
            )
            digest.update(name + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def estimate_tokens(base: BaseDatasetConfig) -> int:
    """Estimate the tokens of the base dataset from its size, rather too many than too few."""
    return sum(path.stat().st_size for path in _list_files(base))


def iter_base(base: BaseDatasetConfig, vocab_size: int) -> Iterator[pa.RecordBatch]:
    """Read the base dataset as canonical batches, streamed.

    Args:
        base: Where it is, and its column names.
        vocab_size: Of the target's tokenizer; an id outside it is another tokenizer's.

    Raises:
        BaseDatasetError: A file or column is missing or of another type, a mask is not 0 or 1 or
            not as long as its ids, or ids are outside the target's vocabulary.
    """
    for path in _list_files(base):
        read = _read_parquet if path.suffix == ".parquet" else _read_jsonl
        for rows in read(path, base):
            yield _to_canonical(rows, vocab_size)


def _list_files(base: BaseDatasetConfig) -> list[Path]:
    path = Path(base.path)
    found = [path] if path.is_file() else sorted(path.rglob("*")) if path.is_dir() else []
    files = [file for file in found if file.suffix in (".parquet", ".jsonl") and file.is_file()]
    if not files:
        raise BaseDatasetError(
            "there is no .parquet or .jsonl file to merge with.",
            where=base.path,
            remedy="Set base.path to the base dataset's file or folder.",
        )
    return files


def _read_parquet(path: Path, base: BaseDatasetConfig) -> Iterator[_Rows]:
    wanted = (base.id, base.input_ids, base.loss_mask, base.domain, base.source)
    columns = list(dict.fromkeys(name for name in wanted if name is not None))
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(columns, file.schema_arrow.names, path)
            first = 0
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                yield _from_arrow(batch, path, first, base)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise BaseDatasetError(
            f"the file cannot be read as Parquet ({type(error).__name__}).", where=str(path)
        ) from error


def _from_arrow(batch: pa.RecordBatch, path: Path, first: int, base: BaseDatasetConfig) -> _Rows:
    flat_ids, n_ids = _flatten(batch.column(base.input_ids), base.input_ids, path)
    flat_mask, n_mask = _flatten(batch.column(base.loss_mask), base.loss_mask, path)

    def read_names(column: str | None, default: str) -> list[str]:
        if column is None:
            return [default] * batch.num_rows
        values = batch.column(column).to_pylist()
        return [default if value is None else str(value) for value in values]

    ids = batch.column(base.id)
    if ids.null_count:
        raise BaseDatasetError(f"column {base.id!r} has empty values.", where=str(path))
    return _Rows(
        where=path,
        first=first,
        ids=[str(value) for value in ids.to_pylist()],
        sources=read_names(base.source, UNKNOWN_SOURCE),
        domains=read_names(base.domain, UNKNOWN_DOMAIN),
        flat_ids=flat_ids,
        n_ids=n_ids,
        flat_mask=flat_mask,
        n_mask=n_mask,
    )


def _flatten(
    column: pa.Array[Any], name: str, path: Path
) -> tuple[_IntArray, npt.NDArray[np.int64]]:
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not (
        pa.types.is_integer(kind.value_type) or pa.types.is_boolean(kind.value_type)
    ):
        raise BaseDatasetError(
            f"column {name!r} is {kind}, not a list of integers.",
            where=str(path),
            remedy="Name the right columns under base.",
        )
    lists = cast("pa.ListArray[Any]", column)
    values = lists.flatten()
    if lists.null_count or values.null_count:
        raise BaseDatasetError(f"column {name!r} has empty values.", where=str(path))
    flat = values.to_numpy(zero_copy_only=False)
    lengths = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    return (flat.astype(np.int8) if flat.dtype == np.bool_ else flat), lengths


def _read_jsonl(path: Path, base: BaseDatasetConfig) -> Iterator[_Rows]:
    lines: list[bytes] = []
    n_bytes = first = 0
    with path.open("rb") as file:
        for line in file:
            lines.append(line)
            n_bytes += len(line)
            if n_bytes >= _BYTES_AT_ONCE:
                yield _from_lines(lines, path, first, base)
                first, n_bytes, lines = first + len(lines), 0, []
    if lines:
        yield _from_lines(lines, path, first, base)


def _from_lines(lines: Sequence[bytes], path: Path, first: int, base: BaseDatasetConfig) -> _Rows:
    rows: list[dict[str, msgspec.Raw]] = []
    names: list[tuple[str, str, str]] = []
    for index, line in enumerate(lines):
        where = f"{path}, row {first + index}"
        try:
            row = _decode_line(line)
            _check_columns([base.id, base.input_ids, base.loss_mask], row, where)
            name = str(_decode_name(row[base.id]))
            source = _read_name(row, base.source, UNKNOWN_SOURCE)
            names.append((name, source, _read_name(row, base.domain, UNKNOWN_DOMAIN)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BaseDatasetError(f"the row cannot be read ({error}).", where=where) from error
        rows.append(row)
    flat_ids, n_ids = _parse(rows, base.input_ids, path, first)
    flat_mask, n_mask = _parse(rows, base.loss_mask, path, first)
    ids, sources, domains = (list(column) for column in zip(*names, strict=True))
    return _Rows(path, first, ids, sources, domains, flat_ids, n_ids, flat_mask, n_mask)


def _read_name(row: dict[str, msgspec.Raw], column: str | None, default: str) -> str:
    if column is None or bytes(row.get(column, msgspec.Raw(b"null"))) == b"null":
        return default
    return str(_decode_name(row[column]))


def _parse(
    rows: Sequence[dict[str, msgspec.Raw]], column: str, path: Path, first: int
) -> tuple[_IntArray, npt.NDArray[np.int64]]:
    try:
        return parse_id_arrays([bytes(row[column]) for row in rows])
    except BadIds as error:
        raise BaseDatasetError(
            f"column {column!r}: {error.reason}.", where=f"{path}, row {first + error.index}"
        ) from error


def _check_columns(wanted: Sequence[str], there: Iterable[str], where: object) -> None:
    names = list(there)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BaseDatasetError(
            f"column {missing[0]!r} is missing; there are {', '.join(map(repr, names[:20]))}.",
            where=str(where),
            remedy="Name the dataset's own columns under base (id, input_ids, loss_mask, ...).",
        )


def _to_canonical(rows: _Rows, vocab_size: int) -> pa.RecordBatch:
    _check_lengths(rows)
    ends = np.cumsum(rows.n_ids)

    def name_row_of(place: int) -> str:
        return rows.name(int(np.searchsorted(ends, place, side="right")))

    if rows.flat_ids.min() < 0 or rows.flat_ids.max() > _INT32_MAX:
        bad = int(np.argmax((rows.flat_ids < 0) | (rows.flat_ids > _INT32_MAX)))
        raise BaseDatasetError(
            f"id {rows.flat_ids[bad]} is no token id (it does not fit int32).",
            where=name_row_of(bad),
        )
    if rows.flat_ids.max() >= vocab_size:
        bad = int(np.argmax(rows.flat_ids))
        raise BaseDatasetError(
            f"id {rows.flat_ids[bad]} lies outside the target's vocabulary (0 to {vocab_size - 1}):"
            " the base dataset was made with another tokenizer.",
            where=name_row_of(bad),
            remedy="Merge with a base dataset of this target, or leave base empty.",
        )
    if rows.flat_mask.min() < 0 or rows.flat_mask.max() > 1:
        bad = int(np.argmax((rows.flat_mask < 0) | (rows.flat_mask > 1)))
        raise BaseDatasetError(
            f"the mask holds {rows.flat_mask[bad]}; it may hold 0 and 1 only.",
            where=name_row_of(bad),
        )
    return make_batch(
        ids=rows.ids,
        sources=rows.sources,
        domains=rows.domains,
        flat_ids=rows.flat_ids.astype(np.int32),
        flat_mask=rows.flat_mask.astype(np.int8),
        seq_lens=rows.n_ids,
        finish_reasons=[UNKNOWN_FINISH] * len(rows.ids),
    )


def _check_lengths(rows: _Rows) -> None:
    uneven = np.flatnonzero((rows.n_ids != rows.n_mask) | (rows.n_ids == 0))
    if len(uneven):
        index = int(uneven[0])
        raise BaseDatasetError(
            f"a row has {rows.n_ids[index]} ids and a mask of {rows.n_mask[index]}; "
            "both must be equally long, and not empty.",
            where=rows.name(index),
        )
