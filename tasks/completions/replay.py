"""What journals hold: for a run that takes a chunk up again, and for whoever asks how far it is.

Enters: a chunk's folder in the spool. Leaves: the terminal outcomes and half-done conversations of
the journals that nobody holds, as places and turns; or, without any lock, how many outcomes there
are, those of the journal that is being written included.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from tasks.completions.journal import Place
from tasks.completions.record import Completion, Status

_log = logging.getLogger(__name__)


class _Failure(msgspec.Struct):
    retryable: bool
    kind: str = ""


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
        for path in _list_journals(folder):
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


class _CountedUsage(msgspec.Struct):
    completion_tokens: int


class _CountedTurn(msgspec.Struct):
    usage: _CountedUsage


class _CountedLine(msgspec.Struct):
    """An outcome, as far as counting looks at it; any other line has no `status`."""

    prompt_id: str = ""
    sample: int = 0
    status: Status | None = None
    failure: _Failure | None = None
    completions: list[_CountedTurn] = []


_COUNTED = msgspec.json.Decoder(_CountedLine)


@dataclass(slots=True)
class SpoolCounts:
    """Outcomes in journals: how many by status, their output tokens, and failures by kind."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    n_output_tokens: int = 0


def count_spool(folder: Path, totals: SpoolCounts) -> None:
    """Add up the outcomes of one chunk's journals, the one being written included.

    Takes no lock: the writer is never held up, and its half-written line is not counted.
    """
    seen: dict[tuple[str, int], _CountedLine] = {}
    for path in _list_journals(folder):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        try:
            for _, line in _iter_lines(fd):
                try:
                    counted = _COUNTED.decode(line)
                except msgspec.MsgspecError:
                    continue
                if counted.status is not None:
                    key = (counted.prompt_id, counted.sample)
                    known = seen.get(key)
                    if known is None or (known.failure is not None and known.failure.retryable):
                        seen[key] = counted
        finally:
            os.close(fd)
    for counted in seen.values():
        totals.statuses[counted.status or ""] += 1
        if counted.failure is not None:
            totals.failures[counted.failure.kind] += 1
        totals.n_output_tokens += sum(turn.usage.completion_tokens for turn in counted.completions)


def _list_journals(folder: Path) -> list[Path]:
    """List a chunk's journals, the oldest first; none where there is no folder."""
    return sorted(folder.glob("*.jsonl"), key=_started_at) if folder.is_dir() else []


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
