"""A lease: a flow run's claim on the fleet, which lapses when the run falls silent.

Enters: the fleet's folder, who holds it, and for how long a renewal counts. Leaves: a file that is
touched while the flow's event loop ticks, and removed at its end. It exists so that a fleet ends
with the last run that needs it, however that run ended, and never under one that is still at work.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from tasks.serving.process import is_alive, start_time
from tasks.serving.state import open_fleet_dir, read_private, write_private

LEASES_DIR = "leases"
_RENEWALS_PER_LEASE = 4
# How long a fleet that nobody holds may wait for its first lease: a flow takes its own before it
# starts the fleet, so that one without any was given up while it was starting.
UNCLAIMED_SECONDS = 60.0


class Lease:
    """Holds the fleet for one flow run; a context manager, entered on the run's event loop.

    A thread renews it, so that a long synchronous task does not let it lapse by itself; but it
    renews only after the loop has answered, so that a hung flow does.
    """

    def __init__(self, fleet_dir: Path, holder: str, seconds: float) -> None:
        """Describe the lease: `holder` is the flow run's id, `seconds` how long silence lasts."""
        self._dir = fleet_dir
        self._seconds = seconds
        name = hashlib.sha256(holder.encode()).hexdigest()[:16]
        self._path = fleet_dir / LEASES_DIR / f"{name}.json"
        self._record = {
            "holder": holder,
            "seconds": seconds,
            "pid": os.getpid(),
            "started_at": start_time(os.getpid()),
        }
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        open_fleet_dir(self._dir)
        open_fleet_dir(self._path.parent)
        write_private(self._path, orjson.dumps(self._record))
        # A run that died keeps its fleet for whoever takes it up; this run has.
        drop_dead_leases(self._dir)
        self._thread = threading.Thread(
            target=self._renew, args=(loop,), name="fleet-lease", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._released.set()
        if self._thread is not None:
            self._thread.join()
        self._path.unlink(missing_ok=True)

    def _renew(self, loop: asyncio.AbstractEventLoop) -> None:
        ticked = threading.Event()
        try:
            loop.call_soon_threadsafe(ticked.set)
            while not self._released.wait(self._seconds / _RENEWALS_PER_LEASE):
                if ticked.is_set():
                    ticked.clear()
                    self._touch()
                    loop.call_soon_threadsafe(ticked.set)
        except RuntimeError:
            # The loop is closed: there is no flow left to renew for.
            return

    def _touch(self) -> None:
        try:
            # Needs no room on the disk, so that a full one does not end the fleet.
            os.utime(self._path, follow_symlinks=False)
        except FileNotFoundError:
            write_private(self._path, orjson.dumps(self._record))


class LeaseWatch:
    """The supervisor's view of the leases.

    A lease has lapsed when its file did not change for its seconds on the watcher's own monotonic
    clock: neither a clock that is set nor a restart of the machine makes it live or die wrongly.
    """

    def __init__(self, fleet_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch the leases of a fleet."""
        self._dir = fleet_dir / LEASES_DIR
        self._clock = clock
        self._seen: dict[Path, tuple[tuple[int, int], float]] = {}
        self._began = clock()
        self._ever_held = False

    def is_unclaimed(self) -> bool:
        """Whether the last lease is gone, or none came for too long."""
        if self.count_held():
            return False
        return self._ever_held or self._clock() - self._began > UNCLAIMED_SECONDS

    def count_held(self) -> int:
        """Return the number of leases in force; lapsed ones are removed."""
        now = self._clock()
        held = 0
        for path in list(self._dir.glob("*.json")):
            seconds = _lease_seconds(path)
            if seconds is None:
                continue
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            version = (found.st_ino, found.st_mtime_ns)
            last, since = self._seen.get(path, ((0, 0), now))
            if version != last:
                since = now
                self._seen[path] = (version, now)
            if now - since > seconds:
                path.unlink(missing_ok=True)
                self._seen.pop(path, None)
                continue
            held += 1
        self._ever_held = self._ever_held or held > 0
        return held


def drop_dead_leases(fleet_dir: Path) -> None:
    """Remove the leases whose holder's process is gone, before a new fleet starts."""
    for path in list((fleet_dir / LEASES_DIR).glob("*.json")):
        record = _read_lease(path)
        pid, started_at = record.get("pid"), record.get("started_at")
        if not (
            isinstance(pid, int) and isinstance(started_at, float) and is_alive(pid, started_at)
        ):
            path.unlink(missing_ok=True)


def count_leases(fleet_dir: Path) -> int:
    """Return how many leases there are on the fleet."""
    return sum(1 for _ in (fleet_dir / LEASES_DIR).glob("*.json"))


def _read_lease(path: Path) -> dict[str, object]:
    try:
        record = orjson.loads(read_private(path) or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return record if isinstance(record, dict) else {}


def _lease_seconds(path: Path) -> float | None:
    seconds = _read_lease(path).get("seconds")
    return float(seconds) if isinstance(seconds, int | float) else None
