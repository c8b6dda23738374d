"""Reading a stored part with every check that it allows.

Enters: a store and a key. Leaves: rows and a receipt, or CorruptPart. It exists so that no reader
of parts can leave a check out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator

from pydantic import ValidationError

from tasks.errors import CorruptPart
from tasks.storage.frames import FrameFault, Meter, read_ends, split_lines
from tasks.storage.layout import parse_part_key
from tasks.storage.record import PART_SCHEMA, PartFooter, PartHeader, PartReceipt
from tasks.storage.store import ArtifactStore


def scan(store: ArtifactStore, key: str) -> Generator[bytes, None, PartReceipt]:
    """Yield the rows of a part and return its receipt once every check has passed.

    Raises:
        FileNotFoundError: There is no such part.
        CorruptPart: Frames, count or hash are not what the part says, or it is another chunk's.
    """
    header_line, footer_line, n_bytes = find_ends(store, key)
    header, footer = parse_ends(store, key, header_line, footer_line)
    digest = hashlib.sha256()
    n_rows = 0
    held: bytes | None = None
    with store.open(key) as stream:
        meter = Meter(stream)
        lines = split_lines(meter)
        try:
            if next(lines, b"") != header_line:
                raise FrameFault("the header is not its first line")
            for line in lines:
                if held is not None:
                    n_rows += 1
                    digest.update(held)
                    digest.update(b"\n")
                    yield held
                held = line
        except FrameFault as error:
            raise _corrupt(store, key, str(error)) from error
    if held != footer_line:
        raise _corrupt(store, key, "the footer is not its last line")
    if n_rows != footer.n_rows:
        raise _corrupt(store, key, f"it has {n_rows} rows and its footer says {footer.n_rows}")
    if digest.hexdigest() != footer.rows_sha256:
        raise _corrupt(store, key, "the sha256 of its rows is not what its footer says")
    if meter.n_bytes != n_bytes:
        raise _corrupt(store, key, f"{meter.n_bytes} of its {n_bytes} bytes came")
    return PartReceipt(key=key, sha256=meter.sha256, n_bytes=n_bytes, header=header, footer=footer)


def find_ends(store: ArtifactStore, key: str) -> tuple[bytes, bytes, int]:
    """Read the header line, the footer line and the size in bytes, without the rows."""
    stat = store.head(key)
    if stat is None:
        raise FileNotFoundError(key)
    try:
        header_line, footer_line = read_ends(
            lambda start, length: store.get_range(key, start, length), stat.n_bytes
        )
    except FrameFault as error:
        raise _corrupt(store, key, str(error)) from error
    return header_line, footer_line, stat.n_bytes


def parse_ends(
    store: ArtifactStore, key: str, header_line: bytes, footer_line: bytes
) -> tuple[PartHeader, PartFooter]:
    """Parse both lines and hold them against each other, the schema and the key."""
    try:
        header = PartHeader.model_validate_json(header_line)
        footer = PartFooter.model_validate_json(footer_line)
    except ValidationError as error:
        raise _corrupt(store, key, "its header or footer has other fields") from error
    if header.schema_version != PART_SCHEMA:
        raise _corrupt(store, key, f"it is of schema {header.schema_version}, not {PART_SCHEMA}")
    if not adds_up(footer):
        raise _corrupt(store, key, "the counts of its footer do not add up")
    place = parse_part_key(key)
    if place is not None and place[:2] != (header.retry, header.chunk_id):
        whose = f"part {header.chunk_id} of retry {header.retry}" if header.retry else ""
        whose = whose or f"the part of chunk {header.chunk_id}"
        raise _corrupt(store, key, f"it is {whose}, swapped")
    return header, footer


def adds_up(footer: PartFooter) -> bool:
    """Whether each conversation ended in exactly one way."""
    ends = (footer.n_completed, footer.n_truncated, footer.n_partial, footer.n_failed)
    return min(ends) >= 0 and footer.n_rows == sum(ends)


def _corrupt(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the part is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Run the same request again: the chunk gets a new revision, this object stays.",
    )
