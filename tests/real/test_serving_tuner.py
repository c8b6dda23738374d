"""The tuner sees only HTTP: over drawn coefficients it picks the winner, whichever that is."""

from __future__ import annotations

import asyncio
import random

import pytest

from tasks.serving.trial import Workbench, run_trial
from tasks.serving.tuner import rank_results
from tests.support.candidates import BENCH, TIME_SCALE, check_choice, draw
from tests.support.simulator import find_free_port, start_simulator

pytestmark = pytest.mark.real

SEEDS = range(10, 15)


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_tuner_picks_the_candidate_that_is_truly_the_fastest(seed: int) -> None:
    await check_choice(draw(random.Random(seed)))


def test_among_these_draws_each_candidate_wins() -> None:
    draws = [draw(random.Random(seed)) for seed in SEEDS]
    assert len({max(drawn, key=lambda each: each.speed).name for drawn in draws}) == 3


async def test_a_server_that_hangs_or_is_gone_fails_alone() -> None:
    with start_simulator(2, enable_metrics=True, sim_time_scale=TIME_SCALE) as [hung, sound]:
        hung.set_faults(hang=True)
        short = Workbench(BENCH.prompts, BENCH.sampling, 0.1, 0.5, 3)
        gone = f"http://127.0.0.1:{find_free_port()}"
        urls = [hung.base_url, sound.base_url, gone]
        results = await asyncio.gather(*(run_trial(url, url, short, slots=8) for url in urls))
    assert [bool(result.error) for result in results] == [True, False, True]
    assert "generates nothing" in results[0].error
    assert rank_results(results)[0].name == sound.base_url
