"""Prompts in Parquet: what an extracted part and a chunk look like.

Enters: prompts as columns. Leaves: files whose bytes depend on the prompts alone (a rerun writes
the same object), and prompts again. Messages and tools are JSON strings: Arrow would unify their
fields over rows and inject nulls. What identifies prompts is a hash over records, not over these
bytes, which another version of the writer may lay out anew.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.prompts.record import Prompt, SourceRef

GROUP_ROWS = 1_000

_PROMPT_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.string(), nullable=False),
    pa.field("messages", pa.string(), nullable=False),
    pa.field("tools", pa.string()),
    pa.field("domain", pa.string(), nullable=False),
    pa.field("domain_rule", pa.string(), nullable=False),
    pa.field("source_key", pa.string(), nullable=False),
    pa.field("dataset", pa.string(), nullable=False),
    pa.field("config", pa.string()),
    pa.field("split", pa.string(), nullable=False),
    pa.field("revision", pa.string(), nullable=False),
    pa.field("row", pa.int64(), nullable=False),
    pa.field("prompt_token_ids", pa.list_(pa.int32()), nullable=False),
]
_REJECTION_FIELDS: list[pa.Field[Any]] = [
    pa.field("row", pa.int64(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("detail", pa.string(), nullable=False),
    pa.field("own_id", pa.string()),
    pa.field("prompt_id", pa.string()),
]
_SEEN_FIELDS: list[pa.Field[Any]] = [
    pa.field("id", pa.binary(16), nullable=False),
    pa.field("how", pa.string(), nullable=False),
]
PROMPT_SCHEMA = pa.schema(_PROMPT_FIELDS)
# Taken apart once: the schema makes its list of names anew each time that it is asked.
_HASHED_NAMES = tuple(PROMPT_SCHEMA.names)
# What a source gave keeps the recorded answer aside; chunks, which are answered anew, do not.
EXTRACTED_SCHEMA = pa.schema([*_PROMPT_FIELDS, pa.field("reference", pa.string())])
REJECTION_SCHEMA = pa.schema(_REJECTION_FIELDS)
SEEN_SCHEMA = pa.schema(_SEEN_FIELDS)

Columns = dict[str, Any]
"""One record of a file: its columns by name, messages and tools still JSON strings."""


class RecordWriter:
    """Writes records to a Parquet file, a row group at a time; used as a context manager."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        # Every setting that shapes the bytes is fixed here, so that a rerun gives the same object.
        self._writer = pq.ParquetWriter(
            path,
            schema,
            version="2.6",
            compression="zstd",
            compression_level=3,
            use_dictionary=True,
            write_statistics=False,
        )
        self._pending: list[Columns] = []
        self.n_rows = 0

    def append(self, columns: Columns) -> None:
        """Add one record."""
        self._pending.append(columns)
        self.n_rows += 1
        if len(self._pending) == GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_pylist(self._pending, schema=self._schema))
            self._pending = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._flush()
        self._writer.close()


def iter_records(data: bytes, columns: Sequence[str] | None = None) -> Iterator[Columns]:
    """Read the records of a file in order, a row group at a time."""
    with pq.ParquetFile(io.BytesIO(data)) as file:
        names = list(columns) if columns is not None else None
        for batch in file.iter_batches(batch_size=GROUP_ROWS, columns=names, use_threads=False):
            yield from batch.to_pylist()


def encode_record(record: Columns) -> bytes:
    """Encode a prompt's record for hashing: one line, the schema's order of fields."""
    return orjson.dumps([record[name] for name in _HASHED_NAMES], option=orjson.OPT_APPEND_NEWLINE)


def to_prompt(record: Columns) -> Prompt:
    """Build a Prompt of a record."""
    return Prompt(
        id=record["id"],
        messages=orjson.loads(record["messages"]),
        tools=record["tools"],
        domain=record["domain"],
        domain_rule=record["domain_rule"],
        source=SourceRef(
            key=record["source_key"],
            dataset=record["dataset"],
            config=record["config"],
            split=record["split"],
            revision=record["revision"],
            row=record["row"],
        ),
        prompt_token_ids=record["prompt_token_ids"],
    )
