"""Each answer says when it came and why it was asked for again; a part says what it cost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.completions.config import GenerationConfig
from tasks.completions.generate import generate_chunk
from tasks.completions.measure import measure_generation
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import start_simulator

N_PROMPTS = 40
SLOTS = 8


async def test_answers_tell_their_time_and_retries_and_the_part_its_slots_and_energy(
    tmp_path: Path,
) -> None:
    template = load_template()
    config = GenerationConfig(backoff_seconds=0.01, attempts=10)
    run = build_run(tmp_path, template, [invent_prompts(template, N_PROMPTS)], generation=config)
    faults = '{"error_rate": 0.3}'
    began = time.time()
    with start_simulator(2, sim_time_scale=0.01, sim_mean_tokens=60, sim_faults=faults) as servers:
        async with run.dispatch(servers, slots=SLOTS) as dispatcher:
            context = replace(run.context(dispatcher), take_energy=lambda: 2.5)
            part = await generate_chunk(context, run.plan.chunks[0])
    ended = time.time()
    completions = [c for outcome in run.read_outcomes(part.key) for c in outcome.completions]
    assert len(completions) == N_PROMPTS
    for completion in completions:
        assert began <= completion.ended_at - completion.latency_seconds + 0.05
        assert completion.ended_at <= ended
        assert len(completion.retried) >= completion.attempts - 1
    again = [c for c in completions if c.retried]
    assert again, "three of ten requests fail"
    assert {cause for c in again for cause in c.retried} == {"server_error"}
    assert part.footer.server_slots == {server.base_url: SLOTS for server in servers}
    assert part.footer.watt_hours == 2.5
    figures = measure_generation(run.store, [part], {})
    assert figures.n_retried == len(again)
    assert figures.retries == {"server_error": sum(len(c.retried) for c in again)}
    assert 0 < figures.seconds < ended - began + 1
    assert figures.occupancy == pytest.approx(
        sum(c.latency_seconds for c in completions) / (figures.seconds * 2 * SLOTS), rel=0.05
    )
