"""From a spec to a living supervisor: ports, command lines, key file, and the end of leftovers.

Enters: a FleetSpec and the fleet's folder, whose `up` lock the caller holds. Leaves: a supervisor
that has taken its own lock. It exists because a start must first undo what a lost supervisor left,
or eight cards stay full of servers that nobody owns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import orjson

from tasks.chat.config import ModelConfig
from tasks.environment.compat import is_hybrid
from tasks.environment.launch_env import launch_environment
from tasks.environment.ports import find_port_holder
from tasks.errors import ConfigError, ConfigIssue, FleetFailed
from tasks.serving.cards import read_cards
from tasks.serving.command import FleetSpec, build_commands, share_gpus
from tasks.serving.config import ServingConfig
from tasks.serving.launchable import LaunchFacts
from tasks.serving.lease import drop_dead_leases
from tasks.serving.log_file import read_tail, rotate_log
from tasks.serving.process import (
    choose_ports,
    end_group,
    end_processes,
    find_marked,
    is_alive,
)
from tasks.serving.state import (
    BY_HAND_MARK,
    KEY_FILE,
    LAUNCH_FILE,
    STATE_FILE,
    SUPERVISOR_LOG,
    Launch,
    open_private,
    read_state,
    write_private,
)

_ORPHAN_GRACE_SECONDS = 10.0


def start_supervisor(
    fleet_dir: Path, spec: FleetSpec, secret: str | None, on_progress: Callable[[str], None]
) -> None:
    """Start a supervisor; returns when it has taken its lock.

    Raises:
        ConfigError: if the settings cannot be launched.
        FleetFailed: if a port is taken, or the supervisor does not start.
    """
    if end_orphans(fleet_dir):
        on_progress("ended what a lost fleet had left")
    drop_dead_leases(fleet_dir)
    (fleet_dir / BY_HAND_MARK).unlink(missing_ok=True)
    launch = _plan_launch(fleet_dir, spec, secret)
    write_private(fleet_dir / LAUNCH_FILE, launch.model_dump_json().encode())
    for index in range(spec.serving.n_servers):
        rotate_log(fleet_dir / f"server-{index}.log", most_bytes=0)
    environ = {
        name: value for name, value in os.environ.items() if name != "DRAFTMILL_SERVER_API_KEY"
    }
    if secret is not None:
        environ["DRAFTMILL_SERVER_API_KEY"] = secret
    log = open_private(fleet_dir / SUPERVISOR_LOG, os.O_WRONLY | os.O_TRUNC)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tasks.serving.supervisor", str(fleet_dir)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            check=False,
        )
    finally:
        os.close(log)
    if ended.returncode != 0:
        raise FleetFailed(
            f"The supervisor did not start (exit status {ended.returncode}).",
            log_tail=read_tail(fleet_dir / SUPERVISOR_LOG, secret=secret),
            where=str(fleet_dir),
        )


def _plan_launch(fleet_dir: Path, spec: FleetSpec, secret: str | None) -> Launch:
    """Choose the ports and build the commands.

    Raises:
        ConfigError: if the settings cannot be launched.
        FleetFailed: if a port is taken.
    """
    config = spec.serving
    ports = _choose_ports(config)
    key_file = _write_key(fleet_dir, secret) if secret and config.engine == "sglang" else None
    commands = build_commands(
        config,
        spec.model,
        ports,
        api_key_file=key_file,
        facts=read_launch_facts(spec.serving, spec.model),
        # The homes lie beside the fleet; a composed one must be told before a server starts.
        toolkit_env=launch_environment(fleet_dir.parent / "cuda"),
    )
    return Launch(spec=spec, commands=tuple(commands))


def _choose_ports(config: ServingConfig) -> list[int]:
    """Choose ports that are free. Shape [n_servers].

    Raises:
        FleetFailed: if one is taken, or nobody can listen at the host.
    """
    try:
        if not config.base_port:
            return choose_ports(config.host, config.n_servers)
        ports = list(range(config.base_port, config.base_port + config.n_servers))
        holders = {port: find_port_holder(config.host, port) for port in ports}
    except OSError as error:
        raise FleetFailed(
            f"No server can listen at {config.host}: {error.strerror}.",
            where="serving.host",
            remedy="Set an address of this machine (127.0.0.1), and a base_port above 1023.",
        ) from error
    for port, holder in holders.items():
        if holder is not None:
            raise FleetFailed(
                f"Port {port} of {config.host} is taken by {holder}.",
                where="serving.base_port",
                remedy="End that process, or set another base_port (0: free ports).",
            )
    return ports


def _write_key(fleet_dir: Path, secret: str) -> str:
    if secret.startswith("-"):
        issue = ConfigIssue("environment", "DRAFTMILL_SERVER_API_KEY", "it begins with '-'")
        raise ConfigError("The servers' API key would be read as a flag.", issues=(issue,))
    path = fleet_dir / KEY_FILE
    # JSON is YAML, and its quotes keep a key of digits a string.
    write_private(path, orjson.dumps({"api-key": secret}))
    return str(path)


def read_launch_facts(serving: ServingConfig, model: ModelConfig) -> LaunchFacts:
    """Read what of the cards and the model decides whether settings go together."""
    cards = None
    if serving.engine == "sglang":
        cards = read_cards([gpu for group in share_gpus(serving) for gpu in group])
    return LaunchFacts(
        capability=cards[0].capability if cards else None,
        hybrid=_find_hybrid(model.path),
        nvlink=all(card.nvlink for card in cards) if cards else None,
    )


def _find_hybrid(model_path: str) -> bool | None:
    """Whether a model in a local folder has GDN layers; None: not a folder with a config."""
    with suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
        config = orjson.loads((Path(model_path) / "config.json").read_bytes())
        return is_hybrid(config["architectures"])
    return None


def end_orphans(fleet_dir: Path) -> bool:
    """End the servers that a lost supervisor left, and forget its state; whether there were any.

    Known by what the state recorded (pid and start time, of each server and of its workers), and,
    where that is lost, by the mark that each server carries in its environment.
    """
    state = read_state(fleet_dir)
    groups = set(find_marked(fleet_dir))
    family: list[tuple[int, float]] = []
    for server in state.servers if state else ():
        family += server.family
        if server.pid is not None and is_alive(server.pid, server.started_at or 0.0):
            groups.add(server.pid)
    if groups:
        with ThreadPoolExecutor(len(groups)) as pool:
            list(pool.map(lambda pid: end_group(pid, grace_seconds=_ORPHAN_GRACE_SECONDS), groups))
    # Workers whose server is gone, and that carry no mark: they rewrote their title over it.
    had_workers = end_processes(family, grace_seconds=_ORPHAN_GRACE_SECONDS)
    (fleet_dir / STATE_FILE).unlink(missing_ok=True)
    (fleet_dir / KEY_FILE).unlink(missing_ok=True)
    return bool(groups) or had_workers
