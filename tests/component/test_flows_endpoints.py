"""Servers that come late join the run, once they pass the probe that all others passed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.stages.endpoints import admit_latecomers, open_probe
from flows.stages.opened import Run
from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import MODEL_DIR, start_simulator


def make_run(template: ChatTemplate, notes: list[str], **serving: Any) -> Run:
    """Make as much of a run as looking for its servers takes."""
    return cast(
        "Run",
        SimpleNamespace(
            settings=SimpleNamespace(server_api_key=None, fleet_dir=Path("fleet")),
            model=ModelConfig(path=str(MODEL_DIR), served_name="simulated", context_length=4096),
            template=template,
            config=SimpleNamespace(serving=SimpleNamespace(slots=None, **serving)),
            narrator=SimpleNamespace(note=notes.append),
        ),
    )


async def test_a_late_server_joins_and_one_with_another_model_never_does(tmp_path: Path) -> None:
    other = tmp_path / "other-model"
    shutil.copytree(MODEL_DIR, other)
    template = load_template()
    generation = build_run(tmp_path, template, [invent_prompts(template, 1)])
    notes: list[str] = []
    flags: dict[str, Any] = {"max_running_requests": 6, "context_length": 4096}
    with (
        start_simulator(2, **flags) as (first, late),
        start_simulator(1, **flags, model_path=other, served_model_name="other") as (wrong,),
    ):
        run = make_run(
            template, notes, mode="attach", urls=[s.base_url for s in (first, late, wrong)]
        )
        async with (
            open_probe(run) as probe,
            generation.dispatch([first]) as dispatcher,
            admit_latecomers(run, dispatcher, probe, every_seconds=0.05),
            asyncio.timeout(60),
        ):
            while len(dispatcher.loads()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            before = n_probes(wrong)
            while n_probes(wrong) < before + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            urls = [load.base_url for load in dispatcher.loads()]
    assert urls == [first.base_url, late.base_url]
    assert notes == [f"{late.base_url} joined: 6 slots"]


async def test_a_server_of_the_runs_own_fleet_joins_once_its_supervisor_says_that_it_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = load_template()
    generation = build_run(tmp_path, template, [invent_prompts(template, 1)])
    with start_simulator(2, max_running_requests=6, context_length=4096) as (first, late):
        states = [
            SimpleNamespace(base_url=server.base_url, status=status)
            for server, status in ((first, "ready"), (late, "starting"))
        ]
        looked: list[Path] = []

        def look(fleet_dir: Path) -> SimpleNamespace:
            looked.append(fleet_dir)
            if len(looked) == 3:
                states[1].status = "ready"
            return SimpleNamespace(status="running", servers=states)

        monkeypatch.setattr("flows.stages.endpoints.fleet_status", look)
        run = make_run(template, [], mode="launch", urls=())
        async with (
            open_probe(run) as probe,
            generation.dispatch([first]) as dispatcher,
            admit_latecomers(run, dispatcher, probe, every_seconds=0.05),
            asyncio.timeout(60),
        ):
            while len(dispatcher.loads()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            urls = [load.base_url for load in dispatcher.loads()]
    assert urls == [first.base_url, late.base_url]
    assert len(looked) >= 3


def n_probes(server: Any) -> int:
    """Count how often the server was looked at."""
    return int(sum(server.stats()["requests"].values()))
