"""A base dataset's columns, whatever their types, as ids and masks side by side. Pure.

Enters: batches or lines as they were read, the user's column names. Leaves: BaseRows, unchecked.
It exists because other writers use int64, bool, large_list and JSON, and leave names out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.errors import BaseDatasetError
from tasks.tokens.base_files import ArrowRows, JsonRows, check_columns
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.ids import BadIds, Int64Array, parse_id_arrays

UNKNOWN_SOURCE = "base"
UNKNOWN_DOMAIN = "unlabelled"

IntArray = npt.NDArray[np.integer]
_decode_line = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_name = msgspec.json.Decoder(str | int).decode


@dataclass(frozen=True, slots=True)
class RowNames:
    """What names a batch's rows: the file, the first row's number in it, ids and labels."""

    where: Path
    first: int
    ids: list[str]
    sources: list[str]
    domains: list[str]

    def place(self, index: int) -> str:
        """Say where a row stands."""
        return f"{self.where}, row {self.first + index}"


@dataclass(frozen=True, slots=True)
class BaseRows:
    """Rows as read, unchecked: flat arrays of shape [n_tokens], lengths of shape [n_rows]."""

    names: RowNames
    flat_ids: IntArray
    n_ids: Int64Array
    flat_mask: IntArray
    n_mask: Int64Array


def list_columns(base: BaseDatasetConfig) -> list[str]:
    """List the columns that a row must have."""
    held = (base.messages, base.tools) if base.messages else (base.input_ids, base.loss_mask)
    wanted = (base.id, *held, base.domain, base.source)
    return list(dict.fromkeys(name for name in wanted if name is not None))


def name_rows(rows: ArrowRows | JsonRows, base: BaseDatasetConfig, n_before: int) -> RowNames:
    """Read ids and labels; `n_before` rows of the dataset came before, and number nameless ones.

    Raises:
        BaseDatasetError: An id is missing or no text.
    """
    if isinstance(rows, ArrowRows):
        return _name_arrow(rows, base, n_before)
    return _name_lines(rows, base, n_before)


def read_ids(rows: ArrowRows | JsonRows, names: RowNames, base: BaseDatasetConfig) -> BaseRows:
    """Read the columns of ids and masks.

    Raises:
        BaseDatasetError: They are no lists of integers.
    """
    if isinstance(rows, ArrowRows):
        ids = _flatten(rows.batch.column(base.input_ids), base.input_ids, rows.where)
        mask = _flatten(rows.batch.column(base.loss_mask), base.loss_mask, rows.where)
    else:
        lines = [_decode(line, names, index) for index, line in enumerate(rows.lines)]
        ids = _parse(lines, base.input_ids, names)
        mask = _parse(lines, base.loss_mask, names)
    return BaseRows(names, *ids, *mask)


def read_values(rows: ArrowRows | JsonRows, column: str, names: RowNames) -> list[Any]:
    """Read a column of any JSON values (conversations, tools), one a row.

    Raises:
        BaseDatasetError: A line is no JSON object.
    """
    if isinstance(rows, ArrowRows):
        return cast("list[Any]", rows.batch.column(column).to_pylist())
    lines = [_decode(line, names, index) for index, line in enumerate(rows.lines)]
    return [msgspec.json.decode(line.get(column, msgspec.Raw(b"null"))) for line in lines]


def _name_arrow(rows: ArrowRows, base: BaseDatasetConfig, n_before: int) -> RowNames:
    batch = rows.batch

    def read(column: str | None, default: str) -> list[str]:
        if column is None:
            return [default] * batch.num_rows
        values = batch.column(column).to_pylist()
        return [default if value is None else str(value) for value in values]

    if base.id is not None and batch.column(base.id).null_count:
        raise BaseDatasetError(f"column {base.id!r} has empty values.", where=str(rows.where))
    ids = read(base.id, "") if base.id is not None else _number(n_before, batch.num_rows)
    sources, domains = read(base.source, UNKNOWN_SOURCE), read(base.domain, UNKNOWN_DOMAIN)
    return RowNames(rows.where, rows.first, ids, sources, domains)


def _name_lines(rows: JsonRows, base: BaseDatasetConfig, n_before: int) -> RowNames:
    names = RowNames(rows.where, rows.first, _number(n_before, len(rows.lines)), [], [])
    for index, text in enumerate(rows.lines):
        line = _decode(text, names, index)
        held = (base.messages,) if base.messages else (base.input_ids, base.loss_mask)
        wanted = [column for column in (base.id, *held) if column is not None]
        check_columns(wanted, list(line), names.place(index))
        try:
            if base.id is not None:
                names.ids[index] = str(_decode_name(line[base.id]))
            names.sources.append(_read_name(line, base.source, UNKNOWN_SOURCE))
            names.domains.append(_read_name(line, base.domain, UNKNOWN_DOMAIN))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _unreadable(error, names, index) from error
    return names


def _number(n_before: int, n_rows: int) -> list[str]:
    return [f"{UNKNOWN_SOURCE}-{number:09d}" for number in range(n_before, n_before + n_rows)]


def _read_name(row: dict[str, msgspec.Raw], column: str | None, default: str) -> str:
    if column is None or bytes(row.get(column, msgspec.Raw(b"null"))) == b"null":
        return default
    return str(_decode_name(row[column]))


def _decode(line: bytes, names: RowNames, index: int) -> dict[str, msgspec.Raw]:
    try:
        return _decode_line(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error, names, index) from error


def _unreadable(error: Exception, names: RowNames, index: int) -> BaseDatasetError:
    return BaseDatasetError(f"the row cannot be read ({error}).", where=names.place(index))


def _flatten(column: pa.Array[Any], name: str, path: Path) -> tuple[IntArray, Int64Array]:
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


def _parse(
    rows: Sequence[dict[str, msgspec.Raw]], column: str, names: RowNames
) -> tuple[IntArray, Int64Array]:
    try:
        return parse_id_arrays([bytes(row[column]) for row in rows])
    except BadIds as error:
        raise BaseDatasetError(
            f"column {column!r}: {error.reason}.", where=names.place(error.index)
        ) from error
