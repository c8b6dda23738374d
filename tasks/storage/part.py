"""The part: one chunk's rows in one object that tells what it holds and shows any damage.

Enters: JSON rows, and what they answer. Leaves: `.jsonl.zst` objects, created once, and receipts.
It exists so that a part is judged by itself wherever it is found: it is ours, a twin's (another
run of the same plan, whose answers differ and are as good), another plan's, or damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from tasks.errors import CorruptPart, KeyTaken
from tasks.storage.frames import read_ends
from tasks.storage.layout import PartPlace, parse_part_key, part_key, part_prefix
from tasks.storage.record import PartFooter, PartHeader, PartReceipt
from tasks.storage.scan import find_ends, parse_ends, scan
from tasks.storage.store import ArtifactStore

_log = logging.getLogger(__name__)


class _RowIdentity(msgspec.Struct):
    """The fields of a row that say which conversation it is."""

    prompt_id: str
    sample: int


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
            receipt = cast("PartReceipt", end.value)
            store.known_parts[key] = receipt
            return receipt
        if visit is not None:
            visit(row)


def find_part(
    store: ArtifactStore, chunk_id: int, plan_sha: str, input_sha256: str, *, retry: int = 0
) -> PartReceipt | None:
    """Find the part of a chunk: its highest revision that is not known to be damaged.

    Args:
        store: The run's store.
        chunk_id: The chunk, or which part of the retry.
        plan_sha: The plan that it must answer.
        input_sha256: The input that it must answer.
        retry: The retry that it belongs to; 0: none, it is a chunk's.

    Raises:
        KeyTaken: The part there answers another plan or other prompts.
    """
    keys = [stat.key for stat in store.list(part_prefix(retry, chunk_id))]
    revisions = [(place.revision, key) for key in keys if (place := parse_part_key(key))]
    for _, key in sorted(revisions, reverse=True):
        if key in store.damaged:
            continue
        try:
            receipt = _take_receipt(store, key)
        except CorruptPart as error:
            _log.warning("passing over a damaged part: %s", error)
            store.damaged.add(key)
            continue
        if (receipt.header.plan_sha, receipt.header.input_sha256) != (plan_sha, input_sha256):
            raise _taken(store, key, "the part there answers another plan or other prompts.")
        return receipt
    return None


def is_sound(store: ArtifactStore, receipt: PartReceipt) -> bool:
    """Read a part whole, unless this process wrote or read it, and hold it against its receipt.

    A damaged one is remembered by the store, so that `find_part` passes it over from then on. It is
    read twice before it is believed to be: bytes can go wrong on their way, too.
    """
    if store.known_parts.get(receipt.key) == receipt:
        return True
    for _ in range(2):
        try:
            if read_receipt(store, receipt.key) == receipt:
                return True
        except (CorruptPart, FileNotFoundError) as error:
            _log.warning("a part is not what it was: %s", error)
    store.damaged.add(receipt.key)
    return False


def _take_receipt(store: ArtifactStore, key: str) -> PartReceipt:
    """Tell what a part is known by, without its rows where the store keeps the sha256.

    A run of 500 GB is taken up by looking at sizes and ends; whoever finishes it reads the rows
    (`is_sound`). A folder keeps no hash: there the part is read.
    """
    known = store.known_parts.get(key)
    if known is not None:
        return known
    stat = store.head(key)
    if stat is None or stat.sha256 is None:
        return read_receipt(store, key)
    header, footer = peek(store, key)
    return PartReceipt(
        key=key, sha256=stat.sha256, n_bytes=stat.n_bytes, header=header, footer=footer
    )


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
    place = parse_part_key(key)
    if place is None or place[:2] != (header.retry, header.chunk_id):
        raise ValueError(f"{key!r} is no key for the part of chunk {header.chunk_id}")
    revision = place.revision
    while True:
        key = part_key(PartPlace(header.retry, header.chunk_id, revision))
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
            receipt = PartReceipt(
                key=key, sha256=sha256, n_bytes=stat.n_bytes, header=header, footer=footer
            )
            store.known_parts[key] = receipt
            return receipt


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


def _taken(store: ArtifactStore, key: str, what: str) -> KeyTaken:
    return KeyTaken(
        what,
        where=f"{store.uri}/{key}",
        remedy="Choose another store.uri for this request; what is there stays as it is.",
    )
