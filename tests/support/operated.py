"""One deployed Draftmill for every test that operates it: made once, and left as it was found.

It is a Prefect server on PostgreSQL with all flows deployed, a worker, and round them simulated
servers, a Hub and a webhook. Runs other than those of an event bring a configuration of their own
along, with a store of its own, so that nothing need be deployed for them. Where several processes
run the tests, one of them gets all the files that use it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.configuration.load import load_config
from tests.support.attached import count_answers
from tests.support.deployed import (
    Operations,
    await_value,
    start_operations,
    write_config,
    write_rows,
)
from tests.support.hub import serve_hub
from tests.support.simulator import SimulatedServer, start_simulator
from tests.support.webhook import Webhook, listen

DATASET, N_DATASET_ROWS = "someone/islands", 40
CHUNK_SIZE = 20
_HOOK = "ops"
_FLAGS = {"max_running_requests": 8, "sim_time_scale": 0.01, "sim_mean_tokens": 60}


@dataclass(frozen=True)
class Operated:
    """A box, and what it works with.

    `newer` is where a newer version of DATASET may be put; `hook` hears every notice; `config` is
    what is deployed, a run over DATASET.
    """

    box: Operations
    folder: Path
    config: Path
    server: SimulatedServer
    newer: dict[str, dict[str, bytes]]
    hook: Webhook
    _workers: ExitStack
    _employed: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def save_webhook(self) -> None:
        """Save the block through which notices go."""
        self.box.save_webhook(_HOOK, self.hook.url)

    def deploy(self) -> None:
        """Do as `make deploy` does, with notices."""
        self.box.deploy(self.config, "--notify", f"custom-webhook/{_HOOK}")

    def employ(self) -> subprocess.Popen[bytes]:
        """Give the worker that is at work; start one where there is none."""
        if not self._employed or self._employed[-1].poll() is not None:
            self._employed.append(self._workers.enter_context(self.box.worker()))
        return self._employed[-1]

    def dismiss(self) -> None:
        """Kill the worker, if one is at work."""
        self._workers.close()

    def configure(self, name: str, n_rows: int, chunk_size: int = CHUNK_SIZE) -> dict[str, Any]:
        """Give a run's `config` parameter: so many rows, and a store of its own at folder/name."""
        rows, path = self.folder / f"{name}.jsonl", self.folder / f"{name}.yaml"
        rows.write_bytes(write_rows(0, n_rows))
        source = f"{{path: {rows}, mapping: {{prompt: question}}}}"
        write_config(path, self.folder / name, source, [self.server], chunk_size)
        return load_config(str(path)).config.model_dump(mode="json")

    def hold_at(self, root: Path, chunk: int, run_id: str) -> psutil.Process:
        """Let a run publish one more part, then let no request get on; give its process."""
        self.server.set_faults(slow=50)
        part = root / f"data/part-{chunk:06}.jsonl.zst"
        await_value(lambda: part.exists() or None, f"the part of chunk {chunk}")
        self.server.set_faults(hang=True)
        return self.box.await_process(run_id)

    def count_answers(self) -> int:
        """Count what the server has answered so far, in all tests together."""
        return count_answers(self.folder)


def read_parts(root: Path) -> dict[str, tuple[bytes, int]]:
    """Read the published parts by name, with the time of their writing."""
    paths = (root / "data").glob("*.zst")
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files test_operate_*.py to one process, as one file: a box a process costs 45 s."""
    if config.getvalue("dist") != "loadfile":
        return None
    scheduling = import_module("xdist.scheduler").LoadFileScheduling(config, log)
    by_file = scheduling._split_scope

    def split_scope(nodeid: str) -> str:
        return "operate" if "/test_operate_" in nodeid else str(by_file(nodeid))

    scheduling._split_scope = split_scope
    return scheduling


@pytest.fixture(scope="session")
def deployed_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Deploy Draftmill on a server of its own."""
    folder = tmp_path_factory.mktemp("operate")
    newer: dict[str, dict[str, bytes]] = {}
    log = folder / "requests.jsonl"
    with (
        serve_hub({DATASET: {"train.jsonl": write_rows(0, N_DATASET_ROWS)}}, newer) as hub,
        listen() as hook,
        start_simulator(1, context_length=4096, sim_request_log=log, **_FLAGS) as servers,
        start_operations(folder, HF_ENDPOINT=hub, HF_HOME=str(folder / "hf")) as box,
        ExitStack() as workers,
    ):
        source = f"{{dataset: {DATASET}, mapping: {{prompt: question}}}}"
        config = write_config(folder / "run.yaml", folder / "root", source, servers)
        operated = Operated(box, folder, config, servers[0], newer, hook, workers)
        operated.save_webhook()
        operated.deploy()
        yield operated


@pytest.fixture
def operated(deployed_box: Operated) -> Iterator[Operated]:
    """The deployed Draftmill, with servers that have no fault before and after."""
    yield deployed_box
    deployed_box.server.set_faults()
