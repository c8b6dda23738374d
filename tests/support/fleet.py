"""A small simulated fleet and its probe, shared by the tests of serving."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.serving.config import ServingConfig, SimulatorConfig
from tasks.serving.process import find_marked, is_alive
from tasks.serving.record import RenderingProbe
from tasks.serving.state import FleetState
from tasks.serving.supervisor import ensure_fleet_up, fleet_down, fleet_status
from tests.support.simulator import MODEL_DIR
from tests.support.stub_server import write_stub

MODEL = ModelConfig(path=str(MODEL_DIR), served_name="simulated", context_length=4096)
SIMULATED = ServingConfig(
    engine="simulator",
    n_servers=2,
    base_port=0,
    ready_timeout_seconds=120,
    simulator=SimulatorConfig(time_scale=0.01),
)


class LineLogger:
    """Stands in for Prefect's run logger and keeps the lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *values: object) -> None:
        self.lines.append(text % values)

    warning = info


def render_probe() -> RenderingProbe:
    messages = [{"role": "user", "content": "How far is the Moon?"}]
    ids = ChatTemplate.load(MODEL).render(messages, None, thinking=True)
    return RenderingProbe(messages=messages, prompt_token_ids=ids)


@contextmanager
def fleet_folder(folder: Path) -> Iterator[Path]:
    """Lend a folder for a fleet; at the end the fleet and its supervisor are gone, or it fails."""
    yield folder
    state = fleet_status(folder)
    fleet_down(folder)
    assert find_marked(folder) == []
    if state is not None:
        assert not is_alive(state.supervisor_pid, state.supervisor_started_at)


def up(folder: Path, config: ServingConfig = SIMULATED, **kwargs: Any) -> list[str]:
    return ensure_fleet_up(folder, config, MODEL, lambda line: None, **kwargs)


def read(folder: Path) -> FleetState:
    state = fleet_status(folder)
    assert state is not None
    return state


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def stub_config(folder: Path, mode: str, **changes: object) -> ServingConfig:
    """Configure one server that is a stub (stub_server.py) in place of sglang."""
    fields = {
        "engine": "sglang",
        "python": write_stub(folder, mode),
        "n_servers": 1,
        "base_port": 0,
        "max_restarts": 0,
        "ready_timeout_seconds": 60,
    }
    return ServingConfig.model_validate(fields | changes)
