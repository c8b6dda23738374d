"""Candidates whose speed is known: simulated servers with drawn coefficients of their batches."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tasks.serving.trial import Workbench, run_trial
from tasks.serving.tuner import rank_results
from tests.support.simulator import SimulatedServer, start_simulator

BENCH = Workbench(
    prompts=[[50, 60, 70 + number] for number in range(64)],
    sampling={"max_new_tokens": 200, "temperature": 1.0},
    slice_seconds=0.3,
    warm_seconds=40,
    most_seconds=6,
)
TIME_SCALE = 0.8
# Two servers closer than this are a toss-up that nobody minds losing.
LEAST_LEAD = 1.06


@dataclass(frozen=True)
class Drawn:
    """A candidate's batch model: the coefficients of its decoding step, and its slots."""

    name: str
    base_ms: float
    slope_ms: float
    slots: int

    @property
    def speed(self) -> float:
        """Tokens a simulated second of a full batch."""
        return 1000 * self.slots / (self.base_ms + self.slope_ms * self.slots)


def draw(luck: random.Random) -> list[Drawn]:
    """Draw three candidates of which one is clearly the fastest; each of them may be."""
    while True:
        drawn = [
            Drawn(name, luck.uniform(20, 60), luck.uniform(0.3, 2.5), luck.choice((6, 12, 24)))
            for name in ("no_buffer", "extra_buffer", "extra_buffer, MTP")
        ]
        first, second = sorted((each.speed for each in drawn), reverse=True)[:2]
        if first > LEAST_LEAD * second:
            return drawn


def start(stack: ExitStack, candidate: Drawn) -> SimulatedServer:
    [server] = stack.enter_context(
        start_simulator(
            1,
            enable_metrics=True,
            max_running_requests=candidate.slots,
            sim_step_base_ms=candidate.base_ms,
            sim_step_slope_ms=candidate.slope_ms,
            sim_time_scale=TIME_SCALE,
            sim_mean_tokens=60,
        )
    )
    return server


async def check_choice(drawn: list[Drawn]) -> None:
    """Start the candidates, have them measured, and hold the choice against the coefficients."""
    with ExitStack() as stack:
        servers = [start(stack, candidate) for candidate in drawn]
        results = await asyncio.gather(
            *(
                run_trial(each.name, server.base_url, BENCH, slots=each.slots)
                for each, server in zip(drawn, servers, strict=True)
            )
        )
    best = max(drawn, key=lambda each: each.speed)
    winner, *_ = rank_results(results)
    assert winner.name == best.name, (drawn, results)
    assert winner.tokens_per_second * TIME_SCALE == pytest.approx(best.speed, rel=0.1)
    assert winner.n_running == pytest.approx(best.slots, rel=0.1)
