"""This host's fleet, for the command line: brought up by hand, looked at, ended.

Enters: a configuration's `model` and `serving`; the rest of it may be missing. Leaves: the fleet's
state as plain values. A fleet started here holds no lease: it stays until it is taken down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Group, RenderableType
from rich.text import Text

from flows.configuration.explain import explain
from flows.configuration.load import read_values
from flows.process.speak import ERR, table
from tasks.chat.config import ModelConfig
from tasks.errors import ConfigError, UserError
from tasks.serving.config import ServingConfig
from tasks.serving.lease import count_leases
from tasks.serving.log_file import read_tail
from tasks.serving.state import BY_HAND_MARK
from tasks.serving.supervisor import ensure_fleet_up, fleet_down, fleet_status
from tasks.settings import read_settings

_LOG_BYTES = 1_000_000


class FleetPart(BaseModel):
    """What of a configuration concerns the servers."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: ModelConfig
    serving: ServingConfig


def load_fleet(source: str, sets: Sequence[str] = ()) -> FleetPart:
    """Read the servers' part of a configuration.

    Raises:
        ConfigError: With every fault found in it.
    """
    values, origins = read_values(source, sets)
    try:
        return FleetPart.model_validate(values)
    except ValidationError as error:
        issues = tuple(explain(fault, origins, source) for fault in error.errors())
        raise ConfigError(f"{source} names no fleet:", issues=issues) from error


def bring_up(part: FleetPart, on_progress: Callable[[str], None]) -> list[str]:
    """Bring a fleet up, or adopt an equal one that runs, and leave it up; give its base urls.

    Raises:
        ConfigError: The servers cannot be launched as configured.
        UserError: Others run the servers, or another fleet runs here.
        FleetFailed: A server never became healthy.
    """
    if part.serving.mode == "attach":
        raise UserError(
            "These servers are run by others (serving.mode attach).",
            where="serving.mode",
            remedy="Start them where they belong, or set serving.mode to launch.",
        )
    settings = read_settings()
    return ensure_fleet_up(
        settings.fleet_dir,
        part.serving,
        part.model,
        on_progress,
        api_key=settings.server_api_key,
        by_hand=True,
    )


def start_fleet(source: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Bring up the fleet of a configuration, telling how far it is; then tell its state."""
    from flows.configuration.complete import locate_model  # noqa: PLC0415  (it knows the sources as well)

    part = load_fleet(source, sets)
    part = part.model_copy(update={"model": locate_model(part.model)})
    urls = bring_up(part, lambda line: ERR.print(line, style="dim", markup=False))
    return {**read_fleet(), "urls": urls}


def read_fleet() -> dict[str, Any]:
    """Tell the state of the fleet and of each server; `status` is `none` where there is none."""
    fleet_dir = read_settings().fleet_dir
    state = fleet_status(fleet_dir)
    if state is None:
        return {"status": "none", "servers": []}
    return {
        "status": state.status,
        "model": state.spec.model.name,
        "supervisor_pid": state.supervisor_pid,
        "by_hand": (fleet_dir / BY_HAND_MARK).exists(),
        "n_leases": count_leases(fleet_dir),
        "servers": [server.model_dump(mode="json") for server in state.servers],
    }


def end_fleet() -> dict[str, Any]:
    """End the fleet and all its processes, then tell its state."""
    ended = fleet_down(read_settings().fleet_dir)
    return {**read_fleet(), "ended": ended}


def read_logs(index: int | None, n_lines: int) -> dict[str, Any]:
    """Give the end of each server's log, or of one server's.

    Raises:
        UserError: There is no such server.
    """
    settings = read_settings()
    key = settings.server_api_key.get_secret_value() if settings.server_api_key else None
    # By number, and not by name: server 10 comes after server 2.
    found = settings.fleet_dir.glob("server-*.log")
    logs = sorted(found, key=lambda log: (len(log.name), log.name))
    if index is not None:
        logs = [log for log in logs if log.name == f"server-{index}.log"]
    if not logs:
        raise UserError(
            "no fleet has written a log" if index is None else f"server {index} has no log",
            where=str(settings.fleet_dir),
            remedy="See `draftmill servers status` for the servers that there are.",
        )
    return {
        "logs": [
            {
                "path": str(log),
                "text": read_tail(log, secret=key, n_bytes=_LOG_BYTES, n_lines=n_lines),
            }
            for log in logs
        ]
    }


def describe_fleet(found: dict[str, Any]) -> RenderableType:
    """Lay the servers out."""
    if "ended" in found:
        return "the fleet was ended" if found["ended"] else "no fleet ran on this host"
    if found["status"] in ("none", "stopped"):
        return "no fleet runs on this host"
    rows = [
        (s["base_url"], s["status"], s["pid"], s["n_restarts"], s["last_error"])
        for s in found["servers"]
    ]
    held = f"{found['n_leases']} leases" + (", by hand" if found["by_hand"] else "")
    return Group(
        table(("server", "status", "pid", "restarts", "last error"), rows),
        Text(
            f"{found['status']}: {found['model']}, held by {held}; "
            f"supervisor {found['supervisor_pid']}"
        ),
    )


def describe_logs(found: dict[str, Any]) -> RenderableType:
    """Show the logs one after another."""
    return Text("\n".join(f"==> {log['path']}\n{log['text']}" for log in found["logs"]))
