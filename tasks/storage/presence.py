"""Who else works at a prefix: each process says so when it begins, and when it ends.

Enters: a store. Leaves: `_run/runs/<run>.begun.json`, later `<run>.ended.json` with the words it
ended by, and words on the runs that have begun and not ended. It exists for the mistake of starting
a run twice: nothing is harmed by it (parts are created once, and a twin's part is taken), but it
should be said; and so that the store alone tells why a run that is not done is at a stand.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.storage.layout import begun_key, ended_key, presence_prefix
from tasks.storage.store import ArtifactStore

M = TypeVar("M", bound=BaseModel)

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9-]")
_BEGUN = re.compile(re.escape(presence_prefix()) + r"(.+)\.begun\.json")
_BOTH_GO_ON = "both may go on: what one publishes, the other takes, and one dataset comes out"


class Presence(BaseModel):
    """A process that works at a prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    pid: int
    process_started_at: float = Field(description="Unix time; tells a pid used again from ours.")
    began_at: str = Field(description="UTC, ISO 8601.")


class Ended(BaseModel):
    """How the work of such a process ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ended_at: str = Field(description="UTC, ISO 8601.")
    state: str = Field(default="", description="Name of the flow's state, or of the error.")
    message: str = Field(default="", description="Its first line.")


@dataclass(frozen=True, slots=True)
class Attendance:
    """A process that began to work at a prefix.

    Attributes:
        began: What it said when it began.
        ended: What it said when it ended; None: it has not.
        is_alive: Whether the process is there; None where that cannot be seen from this host.
    """

    began: Presence
    ended: Ended | None
    is_alive: bool | None


def announce(store: ArtifactStore) -> str:
    """Say that this process begins to work at the prefix; gives the name to end it by."""
    pid = os.getpid()
    began = datetime.now(UTC)
    presence = Presence(
        host=socket.gethostname(),
        pid=pid,
        process_started_at=psutil.Process(pid).create_time(),
        began_at=began.isoformat(timespec="seconds"),
    )
    host = _NOT_PLAIN.sub("-", presence.host)[:40]
    run_id = f"{began:%Y%m%dT%H%M%SZ}-{host}-{pid}-{secrets.token_hex(3)}"
    store.create(begun_key(run_id), presence.model_dump_json().encode() + b"\n")
    return run_id


def take_leave(store: ArtifactStore, run_id: str, state: str = "", message: str = "") -> None:
    """Say that the work under this name has ended, well or not, and how."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    ended = Ended(ended_at=now, state=state, message=message)
    store.create(ended_key(run_id), ended.model_dump_json().encode() + b"\n")


def read_newest(store: ArtifactStore, keys: Iterable[str]) -> Attendance | None:
    """Tell who began to work at the prefix last; None where nobody said so.

    One that is at work on this host is told of before others that began later and have ended.

    Args:
        store: The run's store.
        keys: Of the prefix's objects, those below `_run/runs/` at least.
    """
    known = set(keys)
    newest: Attendance | None = None
    # A name begins with the time, so that the last of them is the newest.
    for key in sorted(known, reverse=True):
        match = _BEGUN.fullmatch(key)
        if match is None or (newest is not None and ended_key(match[1]) in known):
            continue
        began = _read(store, key, Presence)
        if began is None:
            continue
        leave = ended_key(match[1])
        ended = _read(store, leave, Ended) if leave in known else None
        is_here = began.host == socket.gethostname()
        found = Attendance(began, ended, _is_alive(began) if is_here else None)
        if leave not in known and found.is_alive:
            return found
        newest = newest or found
    return newest


def describe_others(store: ArtifactStore, run_id: str) -> Iterator[str]:
    """Tell of each run that began here and has not ended, as far as can be known.

    A process of this host that is no more has crashed and is passed over. Of another host only the
    beginning is known.
    """
    keys = {stat.key for stat in store.list(presence_prefix())}
    for key in sorted(keys):
        match = _BEGUN.fullmatch(key)
        if match is None or match[1] == run_id or ended_key(match[1]) in keys:
            continue
        other = _read(store, key, Presence)
        if other is None:
            continue
        whose = f"began at {other.began_at} on {other.host} (process {other.pid})"
        if other.host != socket.gethostname():
            yield f"a run that {whose} has not said that it ended; if it is at work, {_BOTH_GO_ON}"
        elif _is_alive(other):
            yield f"another run is at work at this prefix: it {whose}; {_BOTH_GO_ON}"


def _read(store: ArtifactStore, key: str, model: type[M]) -> M | None:
    """Read a word; None where it is damaged or gone: it is of no weight for the data."""
    try:
        return model.model_validate_json(store.get(key))
    except (ValidationError, FileNotFoundError):
        return None


def _is_alive(other: Presence) -> bool:
    try:
        return abs(psutil.Process(other.pid).create_time() - other.process_started_at) < 1
    except psutil.Error:
        return False
