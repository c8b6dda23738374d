"""The spool: every finished turn on the local disk before it is counted.

Enters: Completions and Outcomes of one chunk. Leaves: their lines on disk, and the bytes of each
row for the part; after a crash, replay.py reads them again. One journal per (plan, chunk, process),
held by flock; a line is one write. It exists so that a crash costs what was in flight and no more,
and so that rows wait on disk and not in memory: of each only its place (offset, length) is kept.

    {"prompt_id": ..., "sample": ..., "status": ..., ...}    an Outcome, as it stands in the part
    {"attempt": ..., "turn": {...}}                          a turn that another one follows
    {"server": base url, "version": ...}                     the first answer of a server
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import msgspec

from tasks.completions.record import Completion, Outcome
from tasks.errors import SpoolFailed

_ENCODER = msgspec.json.Encoder()
_SYNC_SECONDS = 5.0
_FOLDER_TRIES = 1000
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.]")


class Place(msgspec.Struct, frozen=True):
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
        try:
            self.path, self._fd = _hold_new(folder)
        except OSError as error:
            raise _fail(error, folder) from error
        self.name = self.path.stem
        self._fsync_every = fsync_every
        # Every line is laid down in here: to find room for each anew costs as much as to write it.
        self._line = bytearray()
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
        return self._append(outcome)

    def append_turn(self, attempt: str, completion: Completion) -> None:
        """Write a turn that another one follows.

        Raises:
            SpoolFailed: it was not written; the file ends with the line before it.
        """
        self._append({"attempt": attempt, "turn": completion})

    def note_server(self, base_url: str, version: str) -> None:
        """Write down a server's version at its first answer.

        Raises:
            SpoolFailed: it was not written.
        """
        if base_url not in self._servers:
            self._servers.add(base_url)
            self._append({"server": base_url, "version": version})

    def _append(self, record: Outcome | dict[str, Any]) -> Place:
        if self._fault is not None:
            raise _fail(self._fault, self.path)
        line = self._line
        _ENCODER.encode_into(record, line)
        line += b"\n"
        try:
            n_written = os.write(self._fd, line)
            if n_written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            # A torn line would hide the lines after it: the file ends where it was whole.
            os.ftruncate(self._fd, self._size)
            os.lseek(self._fd, self._size, os.SEEK_SET)
            raise _fail(error, self.path) from error
        place = Place(self._fd, self._size, n_written - 1)
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


def read_owner(path: Path) -> int | None:
    """Tell which process made a file that is named after its journal; None for another host's."""
    host, _, rest = path.stem.rpartition("-")[0].rpartition("-")
    return int(rest) if host == _name_host() and rest.isdecimal() else None


def _name_host() -> str:
    return _NOT_PLAIN.sub("_", socket.gethostname())[:40]


def _hold_new(folder: Path) -> tuple[Path, int]:
    """Create a file and hold it; where a reader was quicker to hold the empty file, another one."""
    n_left = _FOLDER_TRIES
    while True:
        n_left -= 1
        path = folder / f"{_name_host()}-{os.getpid()}-{time.time_ns()}.jsonl"
        fd = _create(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            if not n_left:
                raise
        else:
            return path, fd


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


def _fail(error: OSError, path: Path) -> SpoolFailed:
    return SpoolFailed(
        f"the journal cannot be written ({os.strerror(error.errno or 0)})",
        where=str(path),
        remedy="Free space there, or set DRAFTMILL_HOME to a larger disk, and run again: what is "
        "finished is kept.",
    )
