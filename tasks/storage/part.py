"""The part: one chunk's rows in one object that tells what it holds and shows any damage.

Enters: JSON rows, and what they answer. Leaves: `.jsonl.zst` objects, created once, and receipts.
It exists so that a part is judged by itself wherever it is found: it is ours, a twin's (another
run of the same plan, whose answers differ and are as good), another plan's, or damaged.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
import zstandard
from pydantic import BaseModel

from tasks.errors import AccountingError, CorruptPart, KeyTaken
from tasks.storage.frames import (
    FRAME_BYTES,
    LEVEL,
    MAX_LINE_BYTES,
    make_trailer,
    read_ends,
)
from tasks.storage.layout import data_key, data_prefix, parse_data_key
from tasks.storage.record import PartFooter, PartHeader, PartReceipt
from tasks.storage.scan import adds_up, find_ends, parse_ends, scan
from tasks.storage.store import ArtifactStore

_log = logging.getLogger(__name__)


class _RowIdentity(msgspec.Struct):
    """The fields of a row that say which conversation it is."""

    prompt_id: str
    sample: int


class PartWriter:
    """Writes a part into a local file; the file is a part once `finish` returns."""

    def __init__(self, path: Path, header: PartHeader) -> None:
        """Begin the file, over what an earlier attempt left there.

        Args:
            path: A file of this process alone, in the spool.
            header: Which plan and input the rows answer.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._path = path
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._rows = bytearray()
        self._digest = hashlib.sha256()
        self._n_rows = 0
        self._offset = 0
        self._write_frame(_to_line(header))

    def append(self, line: bytes) -> None:
        """Add one row: a JSON object without its newline.

        Raises:
            ValueError: The row holds a newline or is larger than 64 MiB.
        """
        if len(line) >= MAX_LINE_BYTES or b"\n" in line:
            raise ValueError(f"a row of {len(line)} bytes does not fit on one line of a part")
        self._rows += line
        self._rows += b"\n"
        self._n_rows += 1
        if len(self._rows) >= FRAME_BYTES:
            self._flush()

    def finish(self, counts: Mapping[str, object]) -> PartFooter:
        """Write the footer and close the file.

        Args:
            counts: The fields of PartFooter but for `rows_sha256`; `n_rows` may be left out.

        Raises:
            AccountingError: The counts do not add up to the rows appended.
        """
        self._flush()
        footer = PartFooter.model_validate(
            {"n_rows": self._n_rows, **counts, "rows_sha256": self._digest.hexdigest()}
        )
        if footer.n_rows != self._n_rows or not adds_up(footer):
            self.abandon()
            raise AccountingError(
                f"{self._n_rows} rows were written, and the counts say {footer.n_rows} = "
                f"{footer.n_completed} completed + {footer.n_truncated} truncated + "
                f"{footer.n_partial} partial + {footer.n_failed} failed.",
                where=str(self._path),
            )
        offset = self._offset
        length = self._write_frame(_to_line(footer))
        self._write(make_trailer(offset, length))
        self._file.close()
        return footer

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            self._digest.update(self._rows)
            self._write_frame(self._rows)
            self._rows.clear()

    def _write_frame(self, content: bytes | bytearray) -> int:
        return self._write(self._compressor.compress(content))

    def _write(self, data: bytes) -> int:
        self._file.write(data)
        self._offset += len(data)
        return len(data)


def peek(store: ArtifactStore, key: str) -> tuple[PartHeader, PartFooter]:
    """Read header and footer by ranges, without the rows.

    Raises:
        FileNotFoundError: There is no such part.
        CorruptPart: The object does not begin or end as a part does.
    """
    header_line, footer_line, _ = find_ends(store, key)
    return parse_ends(store, key, header_line, footer_line)


def iter_rows(store: ArtifactStore, key: str) -> Iterator[bytes]:
    """Stream the rows, one JSON object each, without its newline.

    What was yielded is sound only once the iteration ends: the sha256 stands at the end.

    Raises:
        FileNotFoundError: There is no such part.
        CorruptPart: Frames, count or hash are not what the part says, or it is another chunk's.
    """
    yield from scan(store, key)


def read_receipt(
    store: ArtifactStore, key: str, visit: Callable[[bytes], None] | None = None
) -> PartReceipt:
    """Read a whole part and tell what it is known by.

    Args:
        store: The run's store.
        key: Key of the part.
        visit: Called with each row on the way.

    Raises:
        FileNotFoundError: There is no such part.
        CorruptPart: Frames, count or hash are not what the part says, or it is another chunk's.
    """
    rows = scan(store, key)
    while True:
        try:
            row = next(rows)
        except StopIteration as end:
            return cast("PartReceipt", end.value)
        if visit is not None:
            visit(row)


def find_part(
    store: ArtifactStore, chunk_id: int, plan_sha: str, input_sha256: str
) -> PartReceipt | None:
    """Find the part of a chunk: its highest valid revision. Damaged ones are passed over.

    Raises:
        KeyTaken: The part there answers another plan or other prompts.
    """
    keys = [stat.key for stat in store.list(data_prefix(chunk_id))]
    revisions = [(parsed[1], key) for key in keys if (parsed := parse_data_key(key))]
    for _, key in sorted(revisions, reverse=True):
        try:
            receipt = read_receipt(store, key)
        except CorruptPart as error:
            _log.warning("passing over a damaged part: %s", error)
            continue
        if (receipt.header.plan_sha, receipt.header.input_sha256) != (plan_sha, input_sha256):
            raise _taken(store, key, "the part there answers another plan or other prompts.")
        return receipt
    return None


def publish_part(
    store: ArtifactStore, key: str, path: Path, conversations: Sequence[tuple[str, int]]
) -> PartReceipt:
    """Put a finished part in the store, or keep a valid twin that came first.

    A damaged part at the key is left as it is: ours then takes the chunk's next free revision.

    Args:
        store: The run's store.
        key: Key of a data part.
        path: The local file that PartWriter finished.
        conversations: (prompt id, sample) of each row that the chunk must have.

    Returns:
        The receipt of the part that counts, whoever wrote it.

    Raises:
        KeyTaken: The part there is another plan's, or lacks or doubles conversations.
    """
    header, footer = _read_local_ends(path)
    parsed = parse_data_key(key)
    if parsed is None or parsed[0] != header.chunk_id:
        raise ValueError(f"{key!r} is no key for the part of chunk {header.chunk_id}")
    _, revision = parsed
    while True:
        key = data_key(header.chunk_id, revision)
        try:
            stat = store.create_file(key, path)
        except KeyTaken:
            try:
                return _accept_twin(store, key, header, conversations)
            except CorruptPart as error:
                _log.warning("leaving a damaged part as it is: %s", error)
                revision += 1
        else:
            sha256 = cast("str", stat.sha256)  # what was just created is always hashed
            return PartReceipt(
                key=key, sha256=sha256, n_bytes=stat.n_bytes, header=header, footer=footer
            )


def _accept_twin(
    store: ArtifactStore, key: str, header: PartHeader, conversations: Sequence[tuple[str, int]]
) -> PartReceipt:
    there: list[tuple[str, int]] = []

    def note(row: bytes) -> None:
        identity = msgspec.json.decode(row, type=_RowIdentity)
        there.append((identity.prompt_id, identity.sample))

    try:
        receipt = read_receipt(store, key, note)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _taken(store, key, "the part there has rows that are no outcomes.") from error
    if receipt.header != header:
        raise _taken(store, key, "the part there answers another plan or other prompts.")
    if sorted(there) != sorted(conversations):
        raise _taken(store, key, "the part there lacks or doubles conversations.")
    return receipt


def _read_local_ends(path: Path) -> tuple[PartHeader, PartFooter]:
    with path.open("rb") as file:

        def read_range(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        header_line, footer_line = read_ends(read_range, path.stat().st_size)
    return (
        PartHeader.model_validate_json(header_line),
        PartFooter.model_validate_json(footer_line),
    )


def _to_line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _taken(store: ArtifactStore, key: str, what: str) -> KeyTaken:
    return KeyTaken(
        what,
        where=f"{store.uri}/{key}",
        remedy="Choose another store.uri for this request; what is there stays as it is.",
    )
