"""The detached owner of a fleet: bring it up, look at it, take it down; and the process itself.

Enters: a folder and what shall run. Leaves: base urls of servers that outlive the caller. It exists
because whoever starts a server as a child loses it at the first kill -9, or leaves it behind: the
supervisor is nobody's child, is recorded by pid and start time, and ends by lease or by `down`.

Run as `python -m tasks.serving.supervisor FLEET_DIR`: it takes the lock, then detaches.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import SecretStr

from tasks.chat.config import ModelConfig
from tasks.errors import FleetFailed, UserError
from tasks.serving.command import FleetSpec
from tasks.serving.config import ServingConfig
from tasks.serving.fleet import Fleet
from tasks.serving.lease import Lease, count_leases, drop_dead_leases
from tasks.serving.log_file import read_tail
from tasks.serving.process import is_alive, start_time
from tasks.serving.startup import end_orphans, start_supervisor
from tasks.serving.state import (
    BY_HAND_MARK,
    KEY_FILE,
    LAUNCH_FILE,
    STATE_FILE,
    SUPERVISOR_LOCK,
    SUPERVISOR_LOG,
    UP_LOCK,
    FleetState,
    Launch,
    hold_lock,
    is_locked,
    open_fleet_dir,
    read_private,
    read_state,
    try_lock,
    write_private,
)

__all__ = ["Lease", "end_lost_fleet", "ensure_fleet_up", "fleet_down", "fleet_status", "main"]

_POLL_SECONDS = 0.2
_STATE_SECONDS = 60.0
_DOWN_SECONDS = 60.0
_DYING_SECONDS = 10.0
_DOWN_REMEDY = "Run `draftmill servers down` first, or ask for the servers that run."


def ensure_fleet_up(
    fleet_dir: Path,
    config: ServingConfig,
    model: ModelConfig,
    on_progress: Callable[[str], None],
    *,
    api_key: SecretStr | None = None,
    by_hand: bool = False,
    given_up: threading.Event | None = None,
) -> list[str]:
    """Start the fleet, or adopt an equal one that runs; return the base urls of ready servers.

    Blocks until each server is ready or has failed. Two callers at once get the same fleet. A
    flow takes its Lease before it calls, so that the fleet cannot end in between.

    Args:
        fleet_dir: Folder of the state and the logs; one fleet a folder.
        config: The fleet; `keep` counts as `by_hand`.
        model: The target model.
        on_progress: Called with one line whenever something has changed.
        api_key: Key that sglang servers shall ask for.
        by_hand: Whether the fleet stays until `fleet_down`, whatever leases come and go.
        given_up: Set by another thread, it ends the waiting and leaves the fleet as it is.

    Raises:
        ConfigError: if the settings cannot be launched.
        UserError: if another fleet runs.
        FleetFailed: if a port is taken, or a server never became healthy (with its log's end).
    """
    open_fleet_dir(fleet_dir)
    fleet_dir = fleet_dir.resolve()
    spec = FleetSpec(serving=config, model=model, with_api_key=api_key is not None)
    secret = api_key.get_secret_value() if api_key else None
    with hold_lock(fleet_dir / UP_LOCK):
        running = _read_running(fleet_dir)
        if running is not None and running.status != "running":
            on_progress("waiting for an ending fleet")
            _await_unlocked(fleet_dir, _DOWN_SECONDS)
            running = None
        if running is None:
            start_supervisor(fleet_dir, spec, secret, on_progress)
            on_progress(f"starting {config.n_servers} servers")
            # The lock of `up` is let go only when the state says who owns the fleet.
            _read_running(fleet_dir)
        elif running.spec_sha256 != spec.sha256():
            lines = "\n  ".join(running.spec.differences(spec))
            raise UserError(
                f"Another fleet runs (its setting -> yours):\n  {lines}",
                where=str(fleet_dir),
                remedy=_DOWN_REMEDY,
            )
        else:
            on_progress("adopting the fleet that runs")
        if by_hand or config.keep:
            write_private(fleet_dir / BY_HAND_MARK, b"")
    return _await_ready(fleet_dir, spec, secret, on_progress, given_up or threading.Event())


def fleet_status(fleet_dir: Path) -> FleetState | None:
    """Return the fleet's state; None: there is none. `lost`: its supervisor is gone."""
    state = read_state(fleet_dir)
    if state is None or state.status == "stopped":
        return state
    if not is_alive(state.supervisor_pid, state.supervisor_started_at):
        return state.model_copy(update={"status": "lost"})
    return state


def fleet_down(fleet_dir: Path) -> bool:
    """End the fleet and all its processes; returns whether there was anything to end.

    Raises:
        FleetFailed: if the supervisor holds its lock but cannot be found.
    """
    if not fleet_dir.exists():
        return False
    open_fleet_dir(fleet_dir)
    fleet_dir = fleet_dir.resolve()
    with hold_lock(fleet_dir / UP_LOCK):
        (fleet_dir / BY_HAND_MARK).unlink(missing_ok=True)
        running = _read_running(fleet_dir)
        if running is not None:
            _signal_supervisor(running, signal.SIGTERM)
            if not _await_unlocked(fleet_dir, _DOWN_SECONDS):
                _signal_supervisor(running, signal.SIGKILL)
                _await_unlocked(fleet_dir, _DOWN_SECONDS)
        return end_orphans(fleet_dir) or running is not None


def end_lost_fleet(fleet_dir: Path) -> bool:
    """End servers whose supervisor is gone, once nobody needs them; returns whether there were any.

    A supervisor that was killed cannot end its fleet with the last lease: whoever lets that lease
    go does it in its stead.
    """
    if not fleet_dir.exists():
        return False
    state = fleet_status(fleet_dir)
    if state is not None and state.status == "lost":
        # A killed process lets its lock go only when the last of its threads has ended.
        _await_unlocked(fleet_dir, _DYING_SECONDS)
    if is_locked(fleet_dir / SUPERVISOR_LOCK):
        return False
    with hold_lock(fleet_dir / UP_LOCK):
        if is_locked(fleet_dir / SUPERVISOR_LOCK) or (fleet_dir / BY_HAND_MARK).exists():
            return False
        drop_dead_leases(fleet_dir)
        return not count_leases(fleet_dir) and end_orphans(fleet_dir)


def main(arguments: list[str]) -> int:
    """Detach and own the fleet described in the folder; 3: another supervisor does."""
    fleet_dir = Path(arguments[0])
    lock = try_lock(fleet_dir / SUPERVISOR_LOCK)
    if lock is None:
        return 3
    # The parent leaves once the lock is taken: the child inherits the lock and is nobody's zombie.
    if os.fork() > 0:
        return 0
    launch = Launch.model_validate_json(read_private(fleet_dir / LAUNCH_FILE) or b"")
    key = os.environ.get("DRAFTMILL_SERVER_API_KEY")
    fleet = Fleet(
        fleet_dir,
        launch.spec,
        list(launch.commands),
        supervisor=(os.getpid(), start_time(os.getpid()) or 0.0),
        api_key=SecretStr(key) if key else None,
    )
    try:
        asyncio.run(fleet.run())
    finally:
        (fleet_dir / KEY_FILE).unlink(missing_ok=True)
    return 0


def _await_ready(
    fleet_dir: Path,
    spec: FleetSpec,
    secret: str | None,
    on_progress: Callable[[str], None],
    given_up: threading.Event,
) -> list[str]:
    told = ""
    while not given_up.wait(_POLL_SECONDS):
        state = fleet_status(fleet_dir)
        if state is None and is_locked(fleet_dir / SUPERVISOR_LOCK):
            # Damaged: the supervisor writes it again at its next tick.
            continue
        if state is None or state.spec_sha256 != spec.sha256():
            raise FleetFailed(
                "The fleet was taken down while it was starting.", where=str(fleet_dir)
            )
        ready = [server.base_url for server in state.servers if server.status == "ready"]
        failed = [server for server in state.servers if server.status == "failed"]
        if state.status != "running" or len(failed) == len(state.servers):
            raise _explain(fleet_dir, state, secret)
        line = f"{len(ready)} of {len(state.servers)} servers ready"
        if failed:
            line += f", {len(failed)} failed: {failed[0].last_error}"
        if line != told:
            on_progress(line)
            told = line
        if len(ready) + len(failed) == len(state.servers):
            return ready
    raise FleetFailed("Waiting for the fleet was given up.", where=str(fleet_dir))


def _explain(fleet_dir: Path, state: FleetState, secret: str | None) -> FleetFailed:
    failed = next((server for server in state.servers if server.status == "failed"), None)
    if failed is None:
        return FleetFailed(
            "The fleet ended before it was ready.",
            log_tail=read_tail(fleet_dir / SUPERVISOR_LOG, secret=secret),
            where=str(fleet_dir),
        )
    log = fleet_dir / failed.log
    return FleetFailed(
        f"Server {failed.index} did not become healthy: {failed.last_error} "
        f"(after {failed.n_restarts} restarts).",
        log_tail=read_tail(log, secret=secret),
        where=str(log),
        remedy="Read the end of its log below, mend the cause, and run again.",
    )


def _read_running(fleet_dir: Path) -> FleetState | None:
    """Return the state of the living supervisor; None: there is none.

    Raises:
        FleetFailed: if one holds the lock, but does not say who it is.
    """
    deadline = time.monotonic() + _STATE_SECONDS
    while is_locked(fleet_dir / SUPERVISOR_LOCK):
        state = read_state(fleet_dir)
        if state and is_alive(state.supervisor_pid, state.supervisor_started_at):
            return state
        # It is starting, or mends a damaged state file at its next tick.
        if time.monotonic() > deadline:
            raise FleetFailed(
                "A supervisor holds the lock, but its state cannot be read.",
                where=str(fleet_dir / STATE_FILE),
                remedy=f"Find it with `fuser {fleet_dir / SUPERVISOR_LOCK}` and end it.",
            )
        time.sleep(_POLL_SECONDS)
    return None


def _await_unlocked(fleet_dir: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while is_locked(fleet_dir / SUPERVISOR_LOCK):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal_supervisor(state: FleetState, number: signal.Signals) -> None:
    if is_alive(state.supervisor_pid, state.supervisor_started_at):
        with suppress(ProcessLookupError):
            os.kill(state.supervisor_pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
