"""Looks at this host's fleet, and ends it, for the command line."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from flows.speak import table
from tasks.serving.supervisor import fleet_down, fleet_status
from tasks.settings import read_settings


def read_fleet() -> dict[str, Any]:
    """Tell the state of the fleet and of each server; `status` is `none` where there is none."""
    state = fleet_status(read_settings().fleet_dir)
    if state is None:
        return {"status": "none", "servers": []}
    return {
        "status": state.status,
        "servers": [server.model_dump(mode="json") for server in state.servers],
    }


def end_fleet() -> dict[str, Any]:
    """End the fleet and all its processes, then tell its state."""
    ended = fleet_down(read_settings().fleet_dir)
    return {**read_fleet(), "ended": ended}


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
    return table(("server", "status", "pid", "restarts", "last error"), rows)
