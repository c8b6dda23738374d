"""A deployed run that is cancelled or killed leaves no process, is noticed, and can be taken up.

So is whatever else needs a person. A silence lasts a minute: the tests between the one that begins
it and the one that hears it need no worker.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from ruamel.yaml import YAML

from deployments.deploy import HERE
from flows.watch_datasets import STILL_UNREACHABLE
from tests.support.audit import audit_run
from tests.support.deployed import HEARTBEAT_SECONDS, POOL, Operations, await_value
from tests.support.operated import CHUNK_SIZE, Operated, read_parts
from tests.support.webhook import Webhook

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

N_ROWS = 100
SILENCE = "draftmill run without heartbeat"
STANDSTILL = "draftmill run makes no progress"
STUCK, LATE = (f"prefect.flow-run.{uuid4()}" for _ in range(2))
RUN_BY_A_WORKER = ("flows/expand.py", "flows/watch_datasets.py", "flows/verify.py")
# Each in a process that has Prefect imported already: what remains is ours.
IMPORT = """
import importlib, os, sys
import aiohttp, httpx, polars, pyarrow.parquet, transformers
from prefect.flows import Flow
for entrypoint in sys.argv[1:]:
    if os.fork() == 0:
        path, _, name = entrypoint.rpartition(":")
        module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        assert isinstance(getattr(module, name), Flow)
        os._exit(0)
    assert os.wait()[1] == 0, entrypoint
"""


@dataclass(frozen=True)
class Killed:
    """A run that was killed twice: beside a worker that lived, and with its worker."""

    config: dict[str, Any]
    root: Path
    run_id: str
    n_answers_before: int
    parts: dict[str, tuple[bytes, int]]


def list_family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def set_within(box: Operations, name: str, seconds: float) -> float:
    """Let an automation count other seconds; give those that it counted before."""
    there = box.find_automation(name)
    kept = {key: there[key] for key in ("name", "description", "enabled", "actions")}
    trigger = {**there["trigger"], "within": seconds}
    box.put(f"automations/{there['id']}", {**kept, "trigger": trigger})
    return float(there["trigger"]["within"])


def test_cancel_leaves_no_process_and_the_same_parameters_finish_the_run(
    operated: Operated,
) -> None:
    box, root = operated.box, operated.folder / "cancelled"
    config, n_before = operated.configure("cancelled", N_ROWS), operated.count_answers()
    worker = operated.employ()
    run_id = box.start("expand/box", config=config)
    family = list_family(operated.hold_at(root, 1, run_id))
    box.prefect("flow-run", "cancel", run_id)
    assert box.await_end(run_id)["type"] == "CANCELLED"
    assert all(is_gone(process) for process in family)
    assert psutil.Process(worker.pid).children() == []
    parts = read_parts(root)
    assert len(parts) < N_ROWS / CHUNK_SIZE
    assert not (root / "_manifest").exists()

    operated.server.set_faults()
    again = box.start("expand/box", config=config)
    assert box.await_end(again)["name"] == "Completed"
    assert parts.items() <= read_parts(root).items()
    assert len(audit_run(root).outcomes) == N_ROWS
    # What had been answered when it was cancelled lay in its journals.
    assert operated.count_answers() - n_before == N_ROWS
    assert operated.hook.count(subject="failed", body=run_id) == 0
    assert operated.hook.count(subject="failed", body=again) == 0


@pytest.fixture(scope="module")
def killed(deployed_box: Operated) -> Iterator[Killed]:
    """Kill a run, have it retried, and kill it once more with its worker."""
    operated, box, hook = deployed_box, deployed_box.box, deployed_box.hook
    root, config = operated.folder / "killed", operated.configure("killed", N_ROWS)
    n_before = operated.count_answers()
    hook.heard.clear()
    operated.employ()
    run_id = box.start("expand/box", config=config)
    operated.hold_at(root, 0, run_id).kill()
    # A worker that lives says so itself.
    state = box.await_end(run_id)
    assert (state["type"], "-9" in state["message"]) == ("CRASHED", True)
    await_value(
        lambda: hook.count(subject="failed", body=run_id) or None, "a notice of the crashed run"
    )
    operated.server.set_faults()
    # It says so once more some seconds later, and would end a second try with that.
    operated.dismiss()

    # Alive, it beats every thirty seconds; an automation counts from what it has heard itself. One
    # beat may be late, as a busy box has them.
    within = set_within(box, SILENCE, 2 * HEARTBEAT_SECONDS)
    worker = operated.employ()
    box.retry(run_id)
    orphan = operated.hold_at(root, 1, run_id)
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
    # Mended only later: the server would yet answer what the dead one had asked.
    yield Killed(config, root, run_id, n_before, parts)
    set_within(box, SILENCE, within)


@pytest.mark.usefixtures("killed")
def test_whatever_needs_a_person_is_told_to_one_once(operated: Operated) -> None:
    box, hook = operated.box, operated.hook
    # It would take the runs that are only said to run.
    operated.dismiss()
    within = set_within(box, STANDSTILL, 10)
    for name, kind in {
        "Failed": "FAILED",
        "StoppedByGate": "FAILED",
        STILL_UNREACHABLE: "FAILED",
        "Crashed": "CRASHED",
        "CompletedPartial": "COMPLETED",
        "AwaitingReview": "COMPLETED",
        "Completed": "COMPLETED",
        "NothingNew": "COMPLETED",
    }.items():
        run_id = box.start("expand/box")
        box.set_state(run_id, "RUNNING")
        box.set_state(run_id, kind, name, f"said by {name}")
    for event, of in {
        "draftmill.run.progress": STUCK,
        "draftmill.run.eta-slipped": LATE,
        "draftmill.server.lost": "draftmill.server.lost",
    }.items():
        resource = {"prefect.resource.id": of, "prefect.resource.name": of}
        box.post("events", [make_event(event, resource, {"message": f"said of {of}"})])

    wanted = {
        ("failed", "said by Failed"),
        ("failed", "said by Crashed"),
        ("are bad", "said by StoppedByGate"),
        ("not every conversation", "said by CompletedPartial"),
        ("awaits your review", "said by AwaitingReview"),
        ("no progress", STUCK),
        ("later than it said", f"said of {LATE}"),
        ("takes no requests", "said of draftmill.server.lost"),
    }
    counts = await_value(
        lambda: count_all(hook, wanted) if all(count_all(hook, wanted).values()) else None,
        f"notices; came: {hook.heard}",
    )
    assert set(counts.values()) == {1}
    assert hook.count(body="said ") == len(wanted) - 1
    set_within(box, STANDSTILL, within)


def make_event(event: str, resource: dict[str, str], payload: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    body = {"event": event, "resource": resource, "payload": payload}
    return {**body, "id": str(uuid4()), "occurred": now, "related": []}


def count_all(hook: Webhook, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return {(subject, body): hook.count(subject=subject, body=body) for subject, body in wanted}


def test_every_deployed_flow_is_imported_by_itself_from_any_folder(tmp_path: Path) -> None:
    document = YAML(typ="safe", pure=True).load((HERE / "prefect.yaml").read_text())
    # By module; those of the flows that a worker runs in these files are imported there.
    entrypoints = {
        path: one["entrypoint"]
        for one in document["deployments"]
        if (path := one["entrypoint"].partition(":")[0]) not in RUN_BY_A_WORKER
    }
    told = subprocess.run(
        [sys.executable, "-c", IMPORT, *entrypoints.values()],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert told.returncode == 0, told.stderr


def test_a_silent_run_is_noticed_and_a_retry_finishes_what_was_killed(
    operated: Operated, killed: Killed
) -> None:
    box, hook, run_id = operated.box, operated.hook, killed.run_id
    # Nobody is left to say so: its silence tells.
    state = box.await_end(run_id, after=2)
    assert (state["type"], "no heartbeat" in state["message"]) == ("CRASHED", True)
    await_value(
        lambda: hook.count(subject="failed", body=run_id) or None, "a notice of the silent run"
    )

    operated.server.set_faults()
    operated.employ()
    box.retry(run_id)
    assert box.await_end(run_id, after=3)["name"] == "Completed"
    assert hook.count(subject="failed", body=run_id) == 1
    assert hook.count(subject="no worker") == 1
    assert killed.parts.items() <= read_parts(killed.root).items()
    assert len(audit_run(killed.root).outcomes) == N_ROWS
    assert operated.count_answers() - killed.n_answers_before == N_ROWS
