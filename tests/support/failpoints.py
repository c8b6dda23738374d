"""Failpoints at every write of a process, without a hook in the code under test.

Enters: a folder, and at most one Failpoint to arm. Leaves: the steps taken: each system call that
writes below the folder (and each PutObject, wherever it goes), counted by its name. The calls are
wrapped in `os`, in os.fdopen's files and in botocore, so the code that makes them knows nothing.

    with watch(folder) as steps:                       # counts
        run()
    with watch(folder, Failpoint("fsync", 2, "die")):  # the second fsync ends the process
        run()
"""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from botocore.client import BaseClient
from botocore.exceptions import ClientError, ConnectionClosedError

Mode = Literal["fail", "die", "tear", "short", "late-fail", "late-die"]
"""fail: refused. die: SIGKILL before it. tear: half written, then SIGKILL. short: half written, and
so reported. late-fail: done, and reported as failed. late-die: done, then SIGKILL."""

_CALLS = ("write", "fsync", "fdatasync", "ftruncate", "link", "unlink", "mkdir", "rmdir", "rename")
_LATE = frozenset({"link", "put", "rename"})
_WRITES = frozenset({"write", "file-write"})


@dataclass(frozen=True, slots=True)
class Failpoint:
    """What happens at the `nth` step (from 1) of a name."""

    step: str
    nth: int
    mode: Mode


def list_failpoints(steps: Counter[str]) -> list[Failpoint]:
    """Give every failpoint of a run that took these steps."""
    points = []
    for step, n_steps in sorted(steps.items()):
        modes: list[Mode] = ["fail", "die"]
        modes += ["tear"] if step in _WRITES else []
        modes += ["short"] if step == "write" else []
        modes += ["late-fail"] if step in _LATE else []
        # A system call's end is the beginning of the next one.
        modes += ["late-die"] if step == "put" else []
        points += [Failpoint(step, nth, mode) for nth in range(1, n_steps + 1) for mode in modes]
    return points


@dataclass(slots=True)
class _Watch:
    root: str
    armed: Failpoint | None
    steps: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, step: str) -> Mode | None:
        """Count a step; tell what must happen at it."""
        with self.lock:
            self.steps[step] += 1
            point = self.armed
            if point is None or (point.step, point.nth) != (step, self.steps[step]):
                return None
            return point.mode

    def holds(self, place: Any, dir_fd: int | None) -> bool:
        """Whether a path or an open file lies below the root."""
        if isinstance(place, int):
            path = Path(f"/proc/self/fd/{place}").readlink()
        elif dir_fd is None:
            path = Path(place)
        else:
            path = Path(f"/proc/self/fd/{dir_fd}").readlink() / place
        return str(path).startswith(self.root)


@contextmanager
def watch(root: Path, armed: Failpoint | None = None) -> Iterator[Counter[str]]:
    """Count the steps below `root` inside the block, with one failpoint armed or none."""
    state = _Watch(f"{root.resolve()}/", armed)
    with ExitStack() as stack:
        for name in _CALLS:
            stack.enter_context(patch.object(os, name, _wrap(state, name, getattr(os, name))))
        stack.enter_context(patch.object(os, "open", _wrap_open(state, os.open)))
        stack.enter_context(patch.object(os, "fdopen", _wrap_fdopen(state, os.fdopen)))
        call = _wrap_put(state, BaseClient._make_api_call)  # type: ignore[attr-defined]
        stack.enter_context(patch.object(BaseClient, "_make_api_call", call))
        yield state.steps


def _wrap(state: _Watch, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*args: Any, **options: Any) -> Any:
        if not state.holds(args[0], options.get("dir_fd", options.get("src_dir_fd"))):
            return call(*args, **options)
        mode = state.reach(name)
        if mode in ("tear", "short"):
            fd, data = args
            n_written = call(fd, bytes(data)[: len(data) // 2])
            return n_written if mode == "short" else _die()
        return _carry_out(mode, lambda: call(*args, **options), _fail)

    return wrapped


def _wrap_open(state: _Watch, call: Callable[..., int]) -> Callable[..., int]:
    def wrapped(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if not flags & os.O_CREAT or not state.holds(path, options.get("dir_fd")):
            return call(path, flags, *args, **options)
        mode = state.reach("create")
        return int(_carry_out(mode, lambda: call(path, flags, *args, **options), _fail))

    return wrapped


def _wrap_fdopen(state: _Watch, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(fd: int, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode != "wb" or not state.holds(fd, None):
            return call(fd, mode, *args, **options)
        return io.BufferedWriter(_WatchedFile(state, fd))

    return wrapped


class _WatchedFile(io.FileIO):
    """The raw file under a buffer: each of its writes is a system call."""

    def __init__(self, state: _Watch, fd: int) -> None:
        super().__init__(fd, "wb")
        self._state = state

    def write(self, data: Any) -> int:
        mode = self._state.reach("file-write")
        if mode == "tear":
            super().write(bytes(data)[: len(data) // 2])
            _die()
        return int(_carry_out(mode, lambda: super(_WatchedFile, self).write(data), _fail))


def _wrap_put(state: _Watch, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(client: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:
        def carry_out() -> Any:
            return call(client, operation, parameters)

        if operation != "PutObject":
            return carry_out()
        mode = state.reach("put")
        return _carry_out(mode, carry_out, _lose if mode == "late-fail" else _refuse)

    return wrapped


def _carry_out(mode: Mode | None, call: Callable[[], Any], fail: Callable[[], Any]) -> Any:
    if mode == "die":
        _die()
    if mode == "fail":
        fail()
    result = call()
    if mode == "late-die":
        _die()
    if mode == "late-fail":
        fail()
    return result


def _fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _refuse() -> None:
    reply: Any = {
        "Error": {"Code": "ServiceUnavailable"},
        "ResponseMetadata": {"HTTPStatusCode": 503},
    }
    raise ClientError(reply, "PutObject")


def _lose() -> None:
    raise ConnectionClosedError(endpoint_url="the store")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
