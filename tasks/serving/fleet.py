"""The loop that owns the servers: starts, watches, restarts and ends them, and writes it all down.

Enters: a FleetSpec and its ports. Leaves: `state.json`, kept true; at the end, no process. It runs
inside the supervisor process and exists apart from it so that the policy (stagger, readiness,
backoff, budget, leases) can be read in one place. Signal handlers only set `stop`; the loop acts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import httpx
from pydantic import SecretStr

from tasks.serving.command import FleetSpec, ServerCommand
from tasks.serving.lease import LeaseWatch
from tasks.serving.process import ServerProcess, end_group
from tasks.serving.state import (
    BY_HAND_MARK,
    STATE_FILE,
    UP_LOCK,
    FleetState,
    FleetStatus,
    ServerState,
    try_lock,
    write_state,
)

_logger = logging.getLogger(__name__)

_TICK_SECONDS = 0.2
_PROBE_SECONDS = 0.5
_TERM_GRACE_SECONDS = 10.0
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 60.0
# Imports of eight sglang servers at once would starve the box; the simulator's are light.
_STAGGER_SECONDS = {"sglang": 2.0, "simulator": 0.1}
# The server generates a token for /health_generate: seconds on a loaded one.
_HEALTH_TIMEOUT_SECONDS = 30.0


class Fleet:
    """The servers of one spec."""

    def __init__(
        self,
        fleet_dir: Path,
        spec: FleetSpec,
        commands: list[ServerCommand],
        *,
        supervisor: tuple[int, float],
        api_key: SecretStr | None = None,
    ) -> None:
        """Prepare; `supervisor` is the pid and start time of this process."""
        self._dir = fleet_dir
        self._spec = spec
        self._commands = commands
        self._supervisor = supervisor
        self._secret = api_key.get_secret_value() if api_key else None
        self._stop = asyncio.Event()
        self._status: FleetStatus = "running"
        self._was_up = False
        self._leases = LeaseWatch(fleet_dir)
        self._written: tuple[int, int, int] | None = None
        self._servers = [
            ServerState(
                index=index,
                base_url=command.base_url,
                log=f"server-{index}.log",
                status="waiting",
            )
            for index, command in enumerate(commands)
        ]

    async def run(self) -> None:
        """Own the servers until `stop`, a signal, or the last lease's end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        self._write()
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        async with httpx.AsyncClient(
            headers=headers, timeout=_HEALTH_TIMEOUT_SECONDS, trust_env=False
        ) as client:
            keepers = [
                asyncio.create_task(self._keep(index, client))
                for index in range(len(self._servers))
            ]
            try:
                while not self._stop.is_set():
                    self._write_if_damaged()
                    if self._is_stillborn() or self._is_unwanted():
                        break
                    _raise_finished(keepers)
                    await _wait(self._stop, _TICK_SECONDS)
            finally:
                self._status = "stopping"
                self._stop.set()
                self._write()
                await asyncio.gather(*keepers, return_exceptions=True)
                self._status = "stopped"
                self._write()

    def _is_stillborn(self) -> bool:
        """Whether a server failed before all were ready: then no half of a fleet is left."""
        return not self._was_up and any(server.status == "failed" for server in self._servers)

    def _is_unwanted(self) -> bool:
        """Whether nobody claims it any more; then the state says so before anyone adopts it."""
        if self._is_by_hand() or not self._leases.is_unclaimed():
            return False
        lock = try_lock(self._dir / UP_LOCK)
        if lock is None:
            return False
        try:
            if self._leases.count_held() or self._is_by_hand():
                return False
            self._status = "stopping"
            self._write()
            return True
        finally:
            os.close(lock)

    def _is_by_hand(self) -> bool:
        return (self._dir / BY_HAND_MARK).exists()

    async def _keep(self, index: int, client: httpx.AsyncClient) -> None:
        """Keep one server running within its budget of restarts."""
        config = self._spec.serving
        await _wait(self._stop, index * _STAGGER_SECONDS[config.engine])
        backoff = _FIRST_BACKOFF_SECONDS
        n_restarts = 0
        while not self._stop.is_set():
            error, worth_another = await self._run_once(index, client)
            if self._stop.is_set():
                break
            if n_restarts >= config.max_restarts or not worth_another:
                self._set(index, status="failed", last_error=error)
                return
            n_restarts += 1
            self._set(index, status="backoff", n_restarts=n_restarts, last_error=error)
            await _wait(self._stop, backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF_SECONDS)
        self._set(index, status="stopped")

    async def _run_once(self, index: int, client: httpx.AsyncClient) -> tuple[str, bool]:
        """Run a server from start to end; returns why it ended, and whether to start it again."""
        command, log = self._commands[index], self._dir / self._servers[index].log
        try:
            process = ServerProcess.start(command, log, fleet_dir=self._dir)
        except OSError as error:
            return f"cannot run {command.argv[0]}: {error.strerror}", False
        self._set(index, status="starting", pid=process.pid, started_at=process.started_at)
        try:
            if await self._await_ready(process, command.base_url, client):
                self._set(index, status="ready")
                while process.poll() is None and not self._stop.is_set():
                    await _wait(self._stop, _TICK_SECONDS)
            status = process.poll()
            if status is None:
                # It had all its patience: another start would wait as long for nothing.
                limit = self._spec.serving.ready_timeout_seconds
                return f"not healthy within {limit:g} s", False
            return _describe_exit(status), True
        finally:
            # Also after an exit of the leader: its workers may live on and hold the GPU.
            await asyncio.to_thread(end_group, process.pid, grace_seconds=_TERM_GRACE_SECONDS)
            process.popen.wait()
            self._set(index, pid=None, started_at=None)

    async def _await_ready(
        self, process: ServerProcess, base_url: str, client: httpx.AsyncClient
    ) -> bool:
        """Wait until a server can generate; False: it ended, or took too long, or we stop."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._spec.serving.ready_timeout_seconds
        path = "/health_generate"
        while process.poll() is None and not self._stop.is_set() and loop.time() < deadline:
            try:
                status = (await client.get(base_url + path)).status_code
            except httpx.HTTPError:
                status = 0
            if status == httpx.codes.OK:
                return True
            if status == httpx.codes.NOT_FOUND:
                path = "/health"
            await _wait(self._stop, _PROBE_SECONDS)
        return False

    def _set(self, index: int, **changes: object) -> None:
        state = self._servers[index].model_dump() | changes
        self._servers[index] = ServerState.model_validate(state)
        # Noted before anyone can read it: a server may die before the loop's next tick.
        self._was_up = self._was_up or all(server.status == "ready" for server in self._servers)
        self._write()

    def _write(self) -> None:
        pid, started_at = self._supervisor
        state = FleetState(
            spec=self._spec,
            spec_sha256=self._spec.sha256(),
            supervisor_pid=pid,
            supervisor_started_at=started_at,
            status=self._status,
            servers=tuple(self._servers),
        )
        try:
            write_state(self._dir, state)
        except OSError as error:
            # A full disk is no reason to end eight good servers: the next tick tries again.
            _logger.error("the state cannot be written: %s", error)
            self._written = None
        else:
            self._written = self._stat()

    def _write_if_damaged(self) -> None:
        """Write the state again where somebody removed, cut or replaced it."""
        if self._written is None or self._stat() != self._written:
            self._write()

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = (self._dir / STATE_FILE).lstat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Sleep, or wake at the event."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


def _raise_finished(keepers: list[asyncio.Task[None]]) -> None:
    """A keeper that raised has a fault of ours: end the fleet rather than watch half of it."""
    for task in keepers:
        if task.done():
            task.result()


def _describe_exit(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
