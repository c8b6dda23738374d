"""What automations hear of a run: each thing once an episode, and nothing while all is well."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from prefect.server.events.schemas.automations import EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent
from ruamel.yaml import YAML

from deployments.deploy import HERE
from flows.pages import notices
from flows.pages.eta import Eta
from flows.pages.notices import Watcher, tell_automations
from flows.pages.progress import RunProgress
from tasks.completions.roster import EndpointLoad

URL = "http://127.0.0.1:30000"
HOUR = 3600.0


def make_state(
    n_done: int, hours: float, eta: tuple[float, float] | None = None, state: str = "admitted"
) -> RunProgress:
    load = EndpointLoad(
        base_url=URL, state="admitted", slots=72, n_in_flight=72, n_answered=n_done, n_errors=3
    )
    return RunProgress(
        n_done=n_done,
        n_total=1000,
        n_failed=0,
        n_replayed=0,
        n_output_tokens=0,
        n_in_flight=72,
        seconds=hours * HOUR,
        tokens_per_second=0.0,
        tokens_per_second_now=0.0,
        failures={},
        endpoints=(replace(load, state=state),),  # type: ignore[arg-type]
        eta=Eta(eta[0] * HOUR, eta[1] * HOUR, "so far") if eta else None,
        n_chunks_done=0,
        n_chunks=4,
    )


def hear(watcher: Watcher, state: RunProgress, now: float = 0.0) -> list[str]:
    return [notice.event for notice in watcher.judge(state, now)]


def test_progress_is_told_only_where_something_was_finished() -> None:
    watcher = Watcher()
    assert hear(watcher, make_state(10, 1)) == ["draftmill.run.progress"]
    assert hear(watcher, make_state(10, 2)) == []
    assert hear(watcher, make_state(11, 3)) == ["draftmill.run.progress"]


def test_a_later_end_is_told_once_and_then_measured_against_the_new_promise() -> None:
    watcher = Watcher()
    hear(watcher, make_state(10, 1, eta=(8, 9)))  # ten hours in all at most
    assert hear(watcher, make_state(10, 2, eta=(8.9, 12))) == []  # 10.9 at least: within a tenth
    assert hear(watcher, make_state(10, 3, eta=(8.1, 12))) == ["draftmill.run.eta-slipped"]
    assert hear(watcher, make_state(10, 4, eta=(8.1, 12))) == []  # 15 hours are promised now
    assert hear(watcher, make_state(10, 5, eta=(11.6, 14))) == ["draftmill.run.eta-slipped"]


def test_a_lost_server_is_told_once_and_again_after_it_was_back() -> None:
    watcher = Watcher()
    hear(watcher, make_state(10, 1))
    away = make_state(10, 1, state="ejected")
    assert hear(watcher, away, now=0) == []
    assert hear(watcher, away, now=119) == []
    assert hear(watcher, away, now=120) == ["draftmill.server.lost"]
    assert hear(watcher, away, now=500) == []
    assert hear(watcher, make_state(10, 1), now=600) == []
    assert hear(watcher, away, now=700) == []
    assert hear(watcher, away, now=821) == ["draftmill.server.lost"]


async def test_a_run_that_crashed_is_not_waited_for_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[ReceivedEvent] = []
    run_id = str(uuid4())

    def receive(event: str, resource: dict[str, str], payload: dict[str, Any]) -> None:
        now = "2026-01-01T00:00:00Z"
        values = {"id": uuid4(), "occurred": now, "received": now, "payload": payload}
        heard.append(ReceivedEvent(event=event, resource=resource, **values))

    monkeypatch.setattr(notices, "emit_event", receive)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", run_id)
    async with tell_automations("mine", lambda: make_state(10, 1)):
        await asyncio.sleep(0)  # the first look
    assert [event.event for event in heard] == ["draftmill.run.progress", "draftmill.run.ended"]
    # As Prefect tells of a process that was killed.
    receive("prefect.flow-run.Crashed", {"prefect.resource.id": f"prefect.flow-run.{run_id}"}, {})

    entries = YAML(typ="safe", pure=True).load((HERE / "automations.yaml").read_text())
    (entry,) = (one for one in entries if one["name"] == "draftmill run makes no progress")
    trigger = EventTrigger.model_validate(entry["trigger"])
    assert all(trigger.covers(event) for event in heard)
    assert [trigger.starts_after(event.event) for event in heard] == [True, False, False]
    assert all(trigger.expects(event.event) for event in heard)
    assert len({trigger.bucketing_key(event) for event in heard}) == 1
