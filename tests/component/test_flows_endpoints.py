"""Servers that come late join the run, once they pass the probe that all others passed."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from flows.endpoints import admit_latecomers, open_probe
from flows.opened import Run
from tasks.chat.config import ModelConfig
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import MODEL_DIR, start_simulator


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
        run = cast(
            "Run",
            SimpleNamespace(
                settings=SimpleNamespace(server_api_key=None),
                model=ModelConfig(
                    path=str(MODEL_DIR), served_name="simulated", context_length=4096
                ),
                template=template,
                config=SimpleNamespace(
                    serving=SimpleNamespace(
                        slots=None, urls=[server.base_url for server in (first, late, wrong)]
                    )
                ),
                narrator=SimpleNamespace(note=notes.append),
            ),
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


def n_probes(server: Any) -> int:
    """Count how often the server was looked at."""
    return int(sum(server.stats()["requests"].values()))
