"""The spool: every finished turn on the local disk before it is counted.

Enters: Completions and Outcomes of one chunk. Leaves: their lines again, after a crash, and the
bytes of each row for the part. One journal per (plan, chunk, process), held by flock; a line is one
write. It exists so that a crash costs what was in flight and no more, and so that rows wait on disk
and not in memory: only a place (file, offset, length) is kept of each.

    {"prompt_id": ..., "sample": ..., "status": ..., ...}    an Outcome, as it stands in the part
    {"attempt": ..., "turn": {...}}                          a turn that another one follows
    {"server": base url, "version": ...}                     the first answer of a server
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tasks.completions.record import Completion, Outcome
from tasks.errors import SpoolFailed

_log = logging.getLogger(__name__)

_SYNC_SECONDS = 5.0
_FOLDER_TRIES = 1000
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.]")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row's bytes lie: an open file, and offset and length in bytes."""

    fd: int
    offset: int
    length: int

    def read(self) -> bytes:
        """Read the row.

        Raises:
            SpoolFailed: the file is shorter than it was.
        """
        data = os.pread(self.fd, self.length, self.offset)
        if len(data) != self.length:
            raise SpoolFailed("a journal lost bytes that it had", remedy="Check the disk.")
        return data


class Journal:
    """The journal that this process writes for one chunk.

    Attributes:
        path: The file.
        name: What outcomes name as their attempt: host, pid and start.
    """

    def __init__(self, folder: Path, *, fsync_every: int) -> None:
        """Create and hold a new file.

        Raises:
            SpoolFailed: the folder or the file cannot be made.
        """
        host = _NOT_PLAIN.sub("_", socket.gethostname())[:40]
        self.name = f"{host}-{os.getpid()}-{time.time_ns()}"
        self.path = folder / f"{self.name}.jsonl"
        try:
            self._fd = _create(self.path)
        except OSError as error:
            raise _fail(error, folder) from error
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._fsync_every = fsync_every
        self._size = 0
        self._n_unsynced = 0
        self._syncing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fault: OSError | None = None
        self._servers: set[str] = set()

    def append_outcome(self, outcome: Outcome) -> Place:
        """Write an outcome; when this returns, it counts.

        Raises:
            SpoolFailed: it was not written; the file ends with the line before it.
        """
        return self._append(msgspec.json.encode(outcome))

    def append_turn(self, attempt: str, completion: Completion) -> None:
        """Write a turn that another one follows.

        Raises:
            SpoolFailed: it was not written; the file ends with the line before it.
        """
        self._append(msgspec.json.encode({"attempt": attempt, "turn": completion}))

    def note_server(self, base_url: str, version: str) -> None:
        """Write down a server's version at its first answer.

        Raises:
            SpoolFailed: it was not written.
        """
        if base_url not in self._servers:
            self._servers.add(base_url)
            self._append(msgspec.json.encode({"server": base_url, "version": version}))

    def _append(self, line: bytes) -> Place:
        if self._fault is not None:
            raise _fail(self._fault, self.path)
        try:
            n_written = os.write(self._fd, line + b"\n")
            if n_written != len(line) + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            # A torn line would hide the lines after it: the file ends where it was whole.
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise _fail(error, self.path) from error
        place = Place(self._fd, self._size, len(line))
        self._size += n_written
        self._n_unsynced += 1
        self._ask_sync()
        return place

    def _ask_sync(self) -> None:
        if self._syncing is not None:
            return
        if self._n_unsynced >= self._fsync_every:
            self._start_sync()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SYNC_SECONDS, self._start_sync)

    def _start_sync(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._syncing is None and self._n_unsynced:
            self._n_unsynced = 0
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(os.fdatasync, self._fd)
        except OSError as error:
            self._fault = error
        finally:
            self._syncing = None

    async def finish(self) -> None:
        """Put all of it on the disk and let go of the file; its places can still be read.

        Raises:
            SpoolFailed: the disk refused.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            if self._syncing is not None:
                await self._syncing
        finally:
            try:
                os.fsync(self._fd)
            except OSError as error:
                raise _fail(error, self.path) from error
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; its places are gone."""
        os.close(self._fd)


class _Failure(msgspec.Struct):
    retryable: bool


class _Line(msgspec.Struct):
    """Any line of a journal, as far as replay looks at it."""

    attempt: str = ""
    prompt_id: str | None = None
    sample: int = 0
    failure: _Failure | None = None
    turn: Completion | None = None
    server: str | None = None
    version: str = ""


_LINE = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class HalfDone:
    """A conversation that was interrupted between two turns."""

    attempt: str
    turns: list[Completion]


class Replay:
    """What the chunk's earlier journals hold, read from the files that nobody holds.

    Attributes:
        rows: Terminal outcomes: the first one of each (prompt_id, sample) wins.
        half_done: Conversations without an outcome, with their turns in order.
        servers: Version by base url.
        paths: The files read.
    """

    def __init__(self, folder: Path) -> None:
        """Read the folder; a journal that another process writes is left to it."""
        self.rows: dict[tuple[str, int], Place] = {}
        self.half_done: dict[tuple[str, int], HalfDone] = {}
        self.servers: dict[str, str] = {}
        self.paths: list[Path] = []
        self._fds: list[int] = []
        self._turns: dict[tuple[str, int, str], list[Completion]] = {}
        for path in sorted(folder.glob("*.jsonl"), key=_started_at) if folder.is_dir() else ():
            self._read(path)
        for (prompt_id, sample, attempt), turns in self._turns.items():
            if (prompt_id, sample) not in self.rows:
                # A later attempt stands later in the order of the journals.
                self.half_done[prompt_id, sample] = HalfDone(attempt, turns)
        self._turns.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for fd in self._fds:
            os.close(fd)

    def _read(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return
        self._fds.append(fd)
        self.paths.append(path)
        n_lost = 0
        for offset, line in _iter_lines(fd):
            try:
                self._take(Place(fd, offset, len(line)), _LINE.decode(line))
            except msgspec.MsgspecError:
                n_lost += 1
        if n_lost:
            _log.warning("%s: %d unreadable lines; their rows run again", path, n_lost)

    def _take(self, place: Place, line: _Line) -> None:
        if line.server is not None:
            self.servers[line.server] = line.version
        elif line.turn is not None:
            key = (line.turn.prompt_id, line.turn.sample, line.attempt)
            turns = self._turns.setdefault(key, [])
            if line.turn.generation == len(turns):
                turns.append(line.turn)
        elif line.prompt_id is not None:
            self._turns.pop((line.prompt_id, line.sample, line.attempt), None)
            if line.failure is None or not line.failure.retryable:
                self.rows.setdefault((line.prompt_id, line.sample), place)


def _create(path: Path) -> int:
    n_left = _FOLDER_TRIES
    while True:
        n_left -= 1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, FileExistsError):
            # A twin that published its part took the empty folder away, in between.
            if not n_left:
                raise


def _iter_lines(fd: int) -> Iterator[tuple[int, bytes]]:
    """Give each whole line and its offset; a torn tail has no newline and is dropped."""
    offset = 0
    with os.fdopen(os.dup(fd), "rb", buffering=1 << 20) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield offset, line[:-1]
            offset += len(line)


def _started_at(path: Path) -> tuple[int, str]:
    start = path.stem.rpartition("-")[2]
    return int(start) if start.isdecimal() else 0, path.name


def _fail(error: OSError, path: Path) -> SpoolFailed:
    return SpoolFailed(
        f"the journal cannot be written ({os.strerror(error.errno or 0)})",
        where=str(path),
        remedy="Free space there, or set DRAFTMILL_HOME to a larger disk, and run again: what is "
        "finished is kept.",
    )
