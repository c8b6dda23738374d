"""The loop that owns the servers: starts them one after another, and writes down what they do.

Enters: a FleetSpec and its ports. Leaves: `state.json`, kept true; at the end, no process. It runs
inside the supervisor process and exists apart from it so that the policy (stagger, leases, when a
fleet ends as a whole) can be read in one place. Signal handlers only set `stop`; the loop acts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from pathlib import Path

import httpx
from pydantic import SecretStr

from tasks.serving.command import FleetSpec, ServerCommand, share_gpus
from tasks.serving.keeper import ServerKeeper, wait
from tasks.serving.lease import LeaseWatch
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
# Imports of eight sglang servers at once would starve the box; the simulator's are light.
_STAGGER_SECONDS = {"sglang": 2.0, "simulator": 0.1}


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
        async with httpx.AsyncClient(headers=headers, trust_env=False) as client:
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
                    await wait(self._stop, _TICK_SECONDS)
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
        """Start a server in its turn, and keep it."""
        config = self._spec.serving
        keeper = ServerKeeper(
            self._commands[index],
            config,
            gpus=share_gpus(config)[index],
            log=self._dir / self._servers[index].log,
            client=client,
            stop=self._stop,
            tell=partial(self._set, index),
        )
        await wait(self._stop, index * _STAGGER_SECONDS[config.engine])
        await keeper.keep()

    def _set(self, index: int, **changes: object) -> None:
        state = self._servers[index].model_dump() | changes
        if state == self._servers[index].model_dump():
            return
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


def _raise_finished(keepers: list[asyncio.Task[None]]) -> None:
    """A keeper that raised has a fault of ours: end the fleet rather than watch half of it."""
    for task in keepers:
        if task.done():
            task.result()
