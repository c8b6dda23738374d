"""The fleet's folder: its private files, and what the supervisor writes down about its servers.

Enters and leaves: FleetState as `state.json`. It exists so that a fleet outlives the processes that
use it: whoever comes later reads here what runs, as whom, and why something does not.

The folder is 0700 and every file 0600 whatever the umask; a symlink in place of either is refused;
a file is replaced as a whole or not at all.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import UserError
from tasks.serving.command import FleetSpec, ServerCommand

STATE_FILE = "state.json"
LAUNCH_FILE = "launch.json"
KEY_FILE = "api-key.yaml"
SUPERVISOR_LOCK = "supervisor.lock"
UP_LOCK = "up.lock"
SUPERVISOR_LOG = "supervisor.log"
BY_HAND_MARK = "by-hand"

ServerStatus = Literal["waiting", "starting", "ready", "backoff", "failed", "stopped"]
FleetStatus = Literal["running", "stopping", "stopped", "lost"]


class ServerState(BaseModel):
    """One server; the pid and `started_at`, the process's start time, name it for good.

    `family` holds the same two of each of its descendants: a worker that outlives the server is
    known by them, and not by a name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    base_url: str
    log: str
    status: ServerStatus
    pid: int | None = None
    started_at: float | None = None
    family: tuple[tuple[int, float], ...] = ()
    n_restarts: int = 0
    last_error: str = ""


class Launch(BaseModel):
    """What a supervisor is told to run: `launch.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: FleetSpec
    commands: tuple[ServerCommand, ...]


class FleetState(BaseModel):
    """A fleet; `lost`: its supervisor is gone, its servers may not be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: FleetSpec
    spec_sha256: str
    supervisor_pid: int
    supervisor_started_at: float
    status: FleetStatus
    servers: tuple[ServerState, ...]


def open_fleet_dir(fleet_dir: Path) -> None:
    """Make the folder, or make an existing one private.

    Raises:
        UserError: if it is a symlink, not a folder, or another user's.
    """
    fleet_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = fleet_dir.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise UserError(
            "The folder of the fleet is not a folder of your own.",
            where=str(fleet_dir),
            remedy="Point DRAFTMILL_HOME at a folder that you own and that is no symlink.",
        )
    fleet_dir.chmod(0o700)


def open_private(path: Path, flags: int) -> int:
    """Open a file of mode 0600, made if absent; return its descriptor.

    Raises:
        UserError: if a symlink stands in its place.
    """
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise UserError(
                "A symlink stands where the fleet keeps a file of its own.",
                where=str(path),
                remedy="Remove the symlink, and ask who made it.",
            ) from error
        raise
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_private(path: Path, data: bytes) -> None:
    """Replace a file as a whole; a symlink in its place is replaced, not followed."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def read_private(path: Path) -> bytes | None:
    """Read a file; None: it does not exist.

    Raises:
        UserError: if a symlink stands in its place.
    """
    if not path.exists() and not path.is_symlink():
        return None
    with suppress(FileNotFoundError):
        descriptor = open_private(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb") as stream:
            return stream.read()
    return None


def write_state(fleet_dir: Path, state: FleetState) -> None:
    """Write `state.json`."""
    write_private(fleet_dir / STATE_FILE, state.model_dump_json(indent=2).encode())


def read_state(fleet_dir: Path) -> FleetState | None:
    """Read `state.json`; None: absent, truncated or of another version of this program."""
    data = read_private(fleet_dir / STATE_FILE)
    if data is None:
        return None
    try:
        return FleetState.model_validate_json(data)
    except ValidationError:
        return None


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock, waiting for it."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def try_lock(path: Path) -> int | None:
    """Take an exclusive lock if it is free; return the descriptor that holds it until closed."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock."""
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False
