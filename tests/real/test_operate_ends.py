"""A deployed run that is cancelled or killed leaves no process, is noticed, and can be taken up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.load import load_config
from tests.support.attached import count_answers
from tests.support.audit import audit_run
from tests.support.deployed import (
    HEARTBEAT_SECONDS,
    POOL,
    Operations,
    await_value,
    start_operations,
    write_config,
    write_rows,
)
from tests.support.simulator import SimulatedServer, start_simulator
from tests.support.webhook import Webhook, listen

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

N_ROWS = 100
SILENCE = "draftmill run without heartbeat"


@dataclass(frozen=True)
class Field:
    """One simulated server, a webhook, and Draftmill deployed upon them."""

    box: Operations
    server: SimulatedServer
    folder: Path
    hook: Webhook

    def configure(self, name: str) -> dict[str, Any]:
        """Give a run's `config` parameter, with a store of its own."""
        rows = self.folder / "rows.jsonl"
        source = f"{{path: {rows}, mapping: {{prompt: question}}}}"
        path = self.folder / f"{name}.yaml"
        write_config(path, self.folder / name, source, [self.server])
        return load_config(str(path)).config.model_dump(mode="json")

    def hold_at(self, root: Path, chunk: int, run_id: str) -> psutil.Process:
        """Let a run publish one more part, then let no request get on; give its process."""
        self.server.set_faults(slow=50)
        part = root / f"data/part-{chunk:06}.jsonl.zst"
        await_value(lambda: part.exists() or None, f"the part of chunk {chunk}")
        self.server.set_faults(hang=True)
        return self.box.await_process(run_id)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("operate")
    (folder / "rows.jsonl").write_bytes(write_rows(0, N_ROWS))
    log = folder / "requests.jsonl"
    flags = {"max_running_requests": 8, "sim_time_scale": 0.01, "sim_mean_tokens": 60}
    with (
        listen() as hook,
        start_simulator(1, context_length=4096, sim_request_log=log, **flags) as servers,
        start_operations(folder) as box,
    ):
        field = Field(box, servers[0], folder, hook)
        field.configure("deployed")
        box.deploy(folder / "deployed.yaml", "--notify", box.save_webhook("ops", hook.url))
        yield field


def read_parts(root: Path) -> dict[str, tuple[bytes, int]]:
    """Read the published parts, with the time of their writing."""
    paths = (root / "data").glob("*.zst")
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def list_family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_cancel_leaves_no_process_and_the_same_parameters_finish_the_run(field: Field) -> None:
    box, root = field.box, field.folder / "cancelled"
    config, n_before = field.configure("cancelled"), count_answers(field.folder)
    with box.worker() as worker:
        run_id = box.start("expand/box", config=config)
        family = list_family(field.hold_at(root, 1, run_id))
        box.prefect("flow-run", "cancel", run_id)
        assert box.await_end(run_id)["type"] == "CANCELLED"
        assert all(is_gone(process) for process in family)
        assert psutil.Process(worker.pid).children() == []
        parts = read_parts(root)
        assert len(parts) < N_ROWS / 20
        assert not (root / "_manifest").exists()

        field.server.set_faults()
        again = box.start("expand/box", config=config)
        assert box.await_end(again)["name"] == "Completed"
    assert parts.items() <= read_parts(root).items()
    assert len(audit_run(root).outcomes) == N_ROWS
    # What had been answered when it was cancelled lay in its journals.
    assert count_answers(field.folder) - n_before == N_ROWS
    assert field.hook.count(subject="failed") == 0


def test_killed_runs_and_workers_are_noticed_and_a_retry_finishes_the_run(field: Field) -> None:
    box, root, hook = field.box, field.folder / "killed", field.hook
    config, n_before = field.configure("killed"), count_answers(field.folder)
    hook.heard.clear()
    with box.worker():
        run_id = box.start("expand/box", config=config)
        field.hold_at(root, 0, run_id).kill()
        # A worker that lives says so itself.
        state = box.await_end(run_id)
        assert (state["type"], "-9" in state["message"]) == ("CRASHED", True)
        await_value(lambda: hook.count(subject="failed") or None, "a notice of the crashed run")
        field.server.set_faults()

    # Alive, it beats every thirty seconds; an automation counts from what it has heard itself. One
    # beat may be late, as a busy box has them.
    silence = box.find_automation(SILENCE)
    trigger = {**silence["trigger"], "within": 2 * HEARTBEAT_SECONDS}
    kept = {name: silence[name] for name in ("name", "description", "enabled", "actions")}
    box.put(f"automations/{silence['id']}", {**kept, "trigger": trigger})
    with box.worker() as worker:
        box.prefect("flow-run", "retry", run_id)
        orphan = field.hold_at(root, 1, run_id)
        parts = read_parts(root)
        hook.heard.clear()
        worker.kill()
        worker.wait()
        await_value(
            lambda: box.get(f"work_pools/{POOL}")["status"] == "NOT_READY" or None,
            "the pool without a worker",
        )
        workers = box.post(f"work_pools/{POOL}/workers/filter", {})
        assert {one["status"] for one in workers} == {"OFFLINE"}
        await_value(lambda: hook.count(subject="no worker") or None, "a notice of the worker")
        assert not is_gone(orphan)
        assert box.read_run(run_id)["state"]["type"] == "RUNNING"
        orphan.kill()
    # Nobody is left to say so: its silence tells.
    state = box.await_end(run_id, after=2)
    assert (state["type"], "no heartbeat" in state["message"]) == ("CRASHED", True)
    await_value(lambda: hook.count(subject="failed") or None, "a notice of the silent run")

    field.server.set_faults()
    with box.worker():
        box.prefect("flow-run", "retry", run_id)
        assert box.await_end(run_id, after=3)["name"] == "Completed"
        assert (hook.count(subject="failed"), hook.count(subject="no worker")) == (1, 1)
    assert parts.items() <= read_parts(root).items()
    assert len(audit_run(root).outcomes) == N_ROWS
    assert count_answers(field.folder) - n_before == N_ROWS
