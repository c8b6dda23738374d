"""Deployed on a real Prefect: schedules, new commits and notices start what they should, once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flows.watch_datasets import name_variable
from tests.support.audit import audit_run
from tests.support.deployed import POOL, Operations, await_value, write_rows
from tests.support.hub import COMMIT, NEWER_COMMIT
from tests.support.operated import DATASET, N_DATASET_ROWS, Operated

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

N_MORE = 6
WATCH = "watch-datasets/hourly"
TRIGGER = "draftmill new version of a dataset"
SILENCE = "draftmill run without heartbeat"


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


def test_deploying_again_changes_nothing_that_a_person_has_switched(operated: Operated) -> None:
    box = operated.box
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
    operated.deploy()
    assert look_at(box) == switched
    # One that was written anew would have forgotten the runs that it listens for.
    assert box.find_automation(SILENCE) == silence

    for name in (TRIGGER, "draftmill run is late"):
        box.patch(f"automations/{box.find_automation(name)['id']}", {"enabled": True})
    box.patch(f"{schedules}/{verify['schedules'][0]['id']}", {"active": False})


def test_a_schedule_finds_a_commit_and_its_run_answers_the_new_rows_alone(
    operated: Operated,
) -> None:
    box, root, n_answers = operated.box, operated.folder / "root", operated.count_answers()
    n_runs, n_watches = (len(box.list_runs(name)) for name in ("expand/box", WATCH))
    operated.hook.heard.clear()

    def await_run(n_before: int) -> dict[str, Any]:
        runs = await_value(
            lambda: box.list_runs("expand/box")[n_runs + n_before :] or None,
            "a run that an event starts",
        )
        assert len(runs) == 1
        state = box.await_end(runs[0]["id"])
        assert state["name"] == "Completed", state
        return dict(runs[0]["parameters"])

    operated.employ()
    schedules = f"deployments/{box.find_deployment(WATCH)['id']}/schedules"
    soon = datetime.now(UTC) + timedelta(seconds=4)
    every = {"interval": 60, "anchor_date": soon.isoformat()}
    (schedule,) = box.post(schedules, [{"active": True, "schedule": every}])
    await_value(
        lambda: next((r for r in box.list_runs(WATCH)[n_watches:] if r["start_time"]), None),
        "a scheduled run that the worker has begun",
    )
    box.delete(f"{schedules}/{schedule['id']}")
    parameters = await_run(0)
    assert box.list_runs(WATCH)[n_watches]["auto_scheduled"]
    assert (parameters["source"], parameters["revision"]) == ("mine", COMMIT)
    (first,) = root.glob(f"mine@{COMMIT[:12]}-????????")
    audit = audit_run(first)
    assert len(audit.outcomes) == N_DATASET_ROWS
    assert operated.count_answers() - n_answers == N_DATASET_ROWS
    data = {path: path.stat().st_mtime_ns for path in first.rglob("*.zst")}

    # The same event once more: another run, at the same prefix, that finds all of it done.
    variable = name_variable("operated", "mine")
    assert variable in box.prefect("variable", "ls")
    box.prefect("variable", "unset", variable)
    box.start(WATCH)
    assert await_run(1) == parameters
    assert operated.count_answers() - n_answers == N_DATASET_ROWS
    assert data == {path: path.stat().st_mtime_ns for path in first.rglob("*.zst")}
    assert list(root.glob("mine@*-????????")) == [first]

    operated.newer[DATASET] = {"train.jsonl": write_rows(0, N_DATASET_ROWS + N_MORE)}
    box.await_end(box.start(WATCH))
    assert await_run(2)["revision"] == NEWER_COMMIT
    (second,) = root.glob(f"mine@{NEWER_COMMIT[:12]}-????????")
    assert operated.count_answers() - n_answers == N_DATASET_ROWS + N_MORE
    base = operated.folder / "base.jsonl"
    base.write_text("".join(json.dumps(row) + "\n" for row in audit.dataset))
    manifest = audit_run(second, base=base).manifest
    assert manifest["counts"]["n_prompts"] == N_MORE
    assert manifest["counts"]["n_dataset_rows"] == N_DATASET_ROWS + N_MORE

    # There is no dataset at the root itself; both below it are whole.
    assert box.await_end(box.start("verify/weekly"))["name"] == "Completed"
    # Nobody was told anything while all went well: the first to be told of is what fails now.
    assert operated.hook.heard == []
    operated.dismiss()
    failed = box.start("verify/weekly")
    box.set_state(failed, "RUNNING")
    box.set_state(failed, "FAILED")
    hook = operated.hook
    told = await_value(
        lambda: [note for note in hook.heard if "no worker" not in note["subject"]] or None,
        "a notice of the failed run",
    )
    assert f"prefect flow-run retry {failed}" in told[0]["body"]
