"""A run over simulated servers that the test holds in its hands: broken and mended as it goes.

    config = write_config(tmp_path, servers, n_rows=120)
    break_all(servers, empty_answer_rate=1.0)
    run_here(config)

Use the fixtures `servers` (two of them) and `listener` (hears how far the run is).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.pages.narrate import narrator
from flows.pages.progress import RunProgress
from tests.support.audit import count_requests
from tests.support.simulator import SimulatedServer, start_simulator

CONFIG = """
name: attached
store: {{uri: store}}
model: {{path: "builtin:simulator", served_name: simulated, context_length: 4096}}
sampling: {{max_tokens: 1024}}
sources:
  mine: {{path: rows.jsonl, mapping: {{prompt: question}}}}
extraction: {{chunk_size: 60, canary_size: 60}}
generation: {{attempts: 2, backoff_seconds: 0.01, eject_after: 100, failure_budget: 0.2,
  run_failure_budget: 0.2}}
gates: {{empty_answer: 0.1, accept: [duplicate, truncation]}}
serving: {{mode: attach, urls: [{urls}], ready_timeout_seconds: 60}}
"""


class Listener:
    """Hears how far the run is, and acts once."""

    def __init__(self) -> None:
        self.act: Callable[[RunProgress], bool] = lambda state: False
        self.lines: list[str] = []

    def stage(self, title: str, detail: str = "") -> None:
        self.lines.append(f"{title}: {detail}")

    def note(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, state: RunProgress) -> None:
        if self.act(state):
            self.act = lambda state: False


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Stand in for the narrator."""
    heard = Listener()
    token = narrator.set(heard)
    yield heard
    narrator.reset(token)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[SimulatedServer]]:
    """Run two servers that log their requests."""
    flags = {"max_running_requests": 8, "sim_time_scale": 0.01, "sim_mean_tokens": 60}
    log = tmp_path / "requests.jsonl"
    with start_simulator(2, context_length=4096, sim_request_log=log, **flags) as running:
        yield running


def write_config(folder: Path, servers: list[SimulatedServer], n_rows: int) -> Path:
    """Write rows, and a configuration that attaches the servers."""
    rows = [{"question": f"Describe island number {n} in two sentences."} for n in range(n_rows)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "run.yaml"
    urls = ", ".join(f'"{server.base_url}"' for server in servers)
    config.write_text(CONFIG.format(urls=urls))
    return config


def break_all(servers: list[SimulatedServer], **faults: Any) -> None:
    """Put faults in force on every server; without any, mend them all."""
    for server in servers:
        server.set_faults(**faults)


def count_answers(folder: Path) -> int:
    """Count the answers that the servers gave, probes left out."""
    return count_requests(folder / "requests.jsonl").total()
