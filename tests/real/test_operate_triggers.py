"""Deployed on a real Prefect: schedules, new commits and notices start what they should, once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from ruamel.yaml import YAML

from deployments.deploy import HERE
from flows.watch_datasets import STILL_UNREACHABLE, name_variable
from tests.support.attached import count_answers
from tests.support.audit import audit_run
from tests.support.deployed import (
    POOL,
    Operations,
    await_value,
    start_operations,
    write_config,
    write_rows,
)
from tests.support.hub import COMMIT, NEWER_COMMIT, serve_hub
from tests.support.simulator import start_simulator
from tests.support.webhook import Webhook, listen

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

DATASET = "someone/islands"
SOURCE = f"{{dataset: {DATASET}, mapping: {{prompt: question}}}}"
N_FIRST, N_MORE = 40, 6
TRIGGER = "draftmill new version of a dataset"
SILENCE = "draftmill run without heartbeat"
STUCK, LATE = (f"prefect.flow-run.{uuid4()}" for _ in range(2))
RUN_BELOW = ("flows/expand.py", "flows/watch_datasets.py", "flows/verify.py")
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
class Field:
    """A Hub, simulated servers, a webhook, and Draftmill deployed upon them."""

    box: Operations
    config: Path
    folder: Path
    newer: dict[str, dict[str, bytes]]
    hook: Webhook
    notify: str


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("operate")
    newer: dict[str, dict[str, bytes]] = {}
    log = folder / "requests.jsonl"
    flags = {"max_running_requests": 8, "sim_time_scale": 0.01, "sim_mean_tokens": 60}
    with (
        serve_hub({DATASET: {"train.jsonl": write_rows(0, N_FIRST)}}, newer) as hub,
        listen() as hook,
        start_simulator(1, context_length=4096, sim_request_log=log, **flags) as servers,
        start_operations(folder, HF_ENDPOINT=hub, HF_HOME=str(folder / "hf")) as box,
    ):
        config = write_config(folder / "run.yaml", folder / "root", SOURCE, servers)
        notify = box.save_webhook("ops", hook.url)
        box.deploy(config, "--notify", notify)
        yield Field(box, config, folder, newer, hook, notify)


def look_at(box: Operations) -> dict[str, Any]:
    deployments = box.post("deployments/filter", {})
    return {
        "deployments": {one["id"]: (one["name"], one["parameters"]) for one in deployments},
        "schedules": sorted(
            (one["name"], str(schedule["schedule"]), schedule["active"])
            for one in deployments
            for schedule in one["schedules"]
        ),
        "automations": sorted(
            (one["name"], one["enabled"]) for one in box.post("automations/filter", {})
        ),
        "pools": [(one["id"], one["name"]) for one in box.post("work_pools/filter", {})],
    }


def test_deploying_again_changes_nothing_that_a_person_has_switched(field: Field) -> None:
    box = field.box
    first = look_at(box)
    assert len(first["deployments"]) == 8
    assert [name for _, name in first["pools"]] == [POOL]
    assert len(first["schedules"]) == 3
    assert not any(active for _, _, active in first["schedules"])
    assert len(dict(first["automations"])) == len(first["automations"])
    assert all(enabled for _, enabled in first["automations"])

    verify = box.find_deployment("verify/weekly")
    schedules = f"deployments/{verify['id']}/schedules"
    box.patch(f"{schedules}/{verify['schedules'][0]['id']}", {"active": True})
    for name in (TRIGGER, "draftmill run is late"):
        box.patch(f"automations/{box.find_automation(name)['id']}", {"enabled": False})
    switched, silence = look_at(box), box.find_automation(SILENCE)
    assert switched != first
    box.deploy(field.config, "--notify", field.notify)
    assert look_at(box) == switched
    # One that was written anew would have forgotten the runs that it listens for.
    assert box.find_automation(SILENCE) == silence

    for name in (TRIGGER, "draftmill run is late"):
        box.patch(f"automations/{box.find_automation(name)['id']}", {"enabled": True})


def test_every_deployed_flow_is_imported_by_itself_from_any_folder(tmp_path: Path) -> None:
    document = YAML(typ="safe", pure=True).load((HERE / "prefect.yaml").read_text())
    # By module; those of the flows that the worker runs in this file are imported there.
    entrypoints = {
        path: one["entrypoint"]
        for one in document["deployments"]
        if (path := one["entrypoint"].partition(":")[0]) not in RUN_BELOW
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


def test_a_schedule_finds_a_commit_and_its_run_answers_the_new_rows_alone(field: Field) -> None:
    box, root = field.box, field.folder / "root"

    def await_run(n_before: int) -> dict[str, Any]:
        runs = await_value(
            lambda: box.list_runs("expand/box")[n_before:] or None, "a run that an event starts"
        )
        assert len(runs) == 1
        state = box.await_end(runs[0]["id"])
        assert state["name"] == "Completed", state
        return dict(runs[0]["parameters"])

    with box.worker():
        watch = box.find_deployment("watch-datasets/hourly")
        schedules = f"deployments/{watch['id']}/schedules"
        soon = datetime.now(UTC) + timedelta(seconds=8)
        every = {"interval": 3600, "anchor_date": soon.isoformat()}
        (schedule,) = box.post(schedules, [{"active": True, "schedule": every}])
        await_value(
            lambda: next(
                (r for r in box.list_runs("watch-datasets/hourly") if r["start_time"]), None
            ),
            "a scheduled run that the worker has begun",
        )
        box.delete(f"{schedules}/{schedule['id']}")
        parameters = await_run(0)
        assert box.list_runs("watch-datasets/hourly")[0]["auto_scheduled"]
        assert (parameters["source"], parameters["revision"]) == ("mine", COMMIT)
        (first,) = root.glob(f"mine@{COMMIT[:12]}-????????")
        audit = audit_run(first)
        assert len(audit.outcomes) == N_FIRST
        assert count_answers(field.folder) == N_FIRST
        data = {path: path.stat().st_mtime_ns for path in first.rglob("*.zst")}

        # The same event once more: another run, at the same prefix, that finds all of it done.
        variable = name_variable("operated", "mine")
        assert variable in box.prefect("variable", "ls")
        box.prefect("variable", "unset", variable)
        box.start("watch-datasets/hourly")
        assert await_run(1) == parameters
        assert count_answers(field.folder) == N_FIRST
        assert data == {path: path.stat().st_mtime_ns for path in first.rglob("*.zst")}
        assert list(root.glob("mine@*-????????")) == [first]

        field.newer[DATASET] = {"train.jsonl": write_rows(0, N_FIRST + N_MORE)}
        box.await_end(box.start("watch-datasets/hourly"))
        assert await_run(2)["revision"] == NEWER_COMMIT
        (second,) = root.glob(f"mine@{NEWER_COMMIT[:12]}-????????")
        assert count_answers(field.folder) == N_FIRST + N_MORE
        base = field.folder / "base.jsonl"
        base.write_text("".join(json.dumps(row) + "\n" for row in audit.dataset))
        manifest = audit_run(second, base=base).manifest
        assert manifest["counts"]["n_prompts"] == N_MORE
        assert manifest["counts"]["n_dataset_rows"] == N_FIRST + N_MORE

        # Nobody was told anything while all went well; there is no dataset at the root itself.
        assert field.hook.heard == []
        failed = box.start("verify/weekly")
        assert box.await_end(failed)["type"] == "FAILED"
        await_value(lambda: field.hook.heard or None, "a notice of the failed run")
        assert f"prefect flow-run retry {failed}" in field.hook.heard[0]["body"]


def test_whatever_needs_a_person_is_told_to_one_once(field: Field) -> None:
    box, hook = field.box, field.hook
    stuck = box.find_automation("draftmill run makes no progress")
    kept = {name: stuck[name] for name in ("name", "description", "enabled", "actions")}
    box.put(f"automations/{stuck['id']}", {**kept, "trigger": {**stuck["trigger"], "within": 10}})
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


def make_event(event: str, resource: dict[str, str], payload: dict[str, Any]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    body = {"event": event, "resource": resource, "payload": payload}
    return {**body, "id": str(uuid4()), "occurred": now, "related": []}


def count_all(hook: Webhook, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return {(subject, body): hook.count(subject=subject, body=body) for subject, body in wanted}
