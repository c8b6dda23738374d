"""Who else works at a prefix: each process says so when it begins, and when it ends.

Enters: a store. Leaves: `_run/runs/<run>.begun.json`, later `<run>.ended.json`, and words on the
runs that have begun and not ended. It exists for the mistake of starting a run twice: nothing is
harmed by it (parts are created once, and a twin's part is taken), but it should be said.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.storage.layout import begun_key, ended_key, presence_prefix
from tasks.storage.store import ArtifactStore

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


def take_leave(store: ArtifactStore, run_id: str) -> None:
    """Say that the work under this name has ended, well or not."""
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    store.create(ended_key(run_id), f'{{"ended_at": "{ended}"}}\n'.encode())


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
        try:
            other = Presence.model_validate_json(store.get(key))
        except (ValidationError, FileNotFoundError):
            continue  # of no weight for the data
        whose = f"began at {other.began_at} on {other.host} (process {other.pid})"
        if other.host != socket.gethostname():
            yield f"a run that {whose} has not said that it ended; if it is at work, {_BOTH_GO_ON}"
        elif _is_alive(other):
            yield f"another run is at work at this prefix: it {whose}; {_BOTH_GO_ON}"


def _is_alive(other: Presence) -> bool:
    try:
        return abs(psutil.Process(other.pid).create_time() - other.process_started_at) < 1
    except psutil.Error:
        return False
