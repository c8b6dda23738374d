"""One server process: started in a session of its own, named by pid and start time, ended for good.

Enters: a ServerCommand and a log file. Leaves: a running process, and later none of its group. It
exists because a server is a tree of processes: only the whole group is worth ending, and only the
start time tells our process from a stranger's that was later given the same number.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tasks.serving.command import ServerCommand
from tasks.serving.launchable import HIGHEST_PORT
from tasks.serving.state import open_private

FLEET_MARK = "DRAFTMILL_FLEET_DIR"
"""Environment variable that every process of a fleet carries: the folder it belongs to."""

# Start times come from the clock of the kernel's ticks, rounded differently by each reader.
_SAME_START_SECONDS = 0.05


@dataclass(slots=True)
class ServerProcess:
    """A server that we started and whose exit we can read."""

    popen: subprocess.Popen[bytes]
    started_at: float

    @classmethod
    def start(cls, command: ServerCommand, log: Path, *, fleet_dir: Path) -> ServerProcess:
        """Start a server; its output is appended to `log`.

        Raises:
            OSError: if the program cannot be run.
        """
        # The key reaches the server through its own file, not through an inherited environment.
        env = {key: value for key, value in os.environ.items() if not key.startswith("DRAFTMILL_")}
        descriptor = open_private(log, os.O_WRONLY | os.O_APPEND)
        try:
            popen = subprocess.Popen(
                command.argv,
                env=env | command.env | {FLEET_MARK: str(fleet_dir)},
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        started_at = time.time()
        with suppress(psutil.NoSuchProcess):
            started_at = psutil.Process(popen.pid).create_time()
        return cls(popen, started_at)

    @property
    def pid(self) -> int:
        """The process, and the number of its group."""
        return self.popen.pid

    def poll(self) -> int | None:
        """Return the exit status (negative: the signal), or None while it runs."""
        return self.popen.poll()


def start_time(pid: int) -> float | None:
    """Return when a process started (Unix seconds); None: there is none, or only its zombie."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return process.create_time()
    except psutil.NoSuchProcess:
        return None


def is_alive(pid: int, started_at: float) -> bool:
    """Whether the very process that started then still runs."""
    found = start_time(pid)
    return found is not None and abs(found - started_at) < _SAME_START_SECONDS


def signal_group(pid: int, number: signal.Signals) -> None:
    """Signal a whole process group; one that is gone is no error."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def group_members(pid: int) -> list[int]:
    """Return the living processes of a group, zombies left out."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def list_family(pid: int) -> tuple[tuple[int, float], ...]:
    """Return (pid, start time) of a process's living descendants."""
    family = []
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                family.append((child.pid, child.create_time()))
    return tuple(sorted(family))


def end_processes(family: Iterable[tuple[int, float]], *, grace_seconds: float) -> bool:
    """End the very processes recorded, TERM then KILL; whether any of them still lived."""
    living = [(pid, started_at) for pid, started_at in family if is_alive(pid, started_at)]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, started_at in living:
            if is_alive(pid, started_at):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        deadline = time.monotonic() + grace_seconds
        while any(is_alive(*each) for each in living) and time.monotonic() < deadline:
            time.sleep(0.1)
    return bool(living)


def end_group(pid: int, *, grace_seconds: float) -> None:
    """End a process group: TERM, then KILL after the grace; returns when no member lives."""
    signal_group(pid, signal.SIGTERM)
    if not _await_empty(pid, grace_seconds):
        signal_group(pid, signal.SIGKILL)
        _await_empty(pid, 10.0)


def _await_empty(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while group_members(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def find_marked(fleet_dir: Path) -> list[int]:
    """Return the process groups of this user that carry the mark of a fleet."""
    groups = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (
                process.uids().real == os.getuid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(FLEET_MARK) == str(fleet_dir)
            ):
                groups.add(os.getpgid(process.pid))
    return sorted(groups - {os.getpgid(0)})


def choose_ports(host: str, n_ports: int) -> list[int]:
    """Return ports that are free now and that a server takes. Shape [n_ports]."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports: list[int] = []
    # All stay bound until the last is found, so that no two are the same.
    with ExitStack() as stack:
        while len(ports) < n_ports:
            bound = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            bound.bind((host, 0))
            port = int(bound.getsockname()[1])
            if port <= HIGHEST_PORT:
                ports.append(port)
    return ports
