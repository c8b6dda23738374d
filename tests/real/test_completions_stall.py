"""A server that is healthy and generates nothing: its requests go elsewhere, and it returns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tasks.completions.config import GenerationConfig
from tasks.completions.generate import generate_chunk
from tasks.completions.stall import watch_stalls
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import start_simulator

pytestmark = pytest.mark.real

STALL_SECONDS = 2.0
FLAGS = {"sim_time_scale": 0.02, "sim_mean_tokens": 60, "max_running_requests": 8}


async def test_requests_of_a_hung_server_are_taken_back_and_cost_no_attempt(
    tmp_path: Path,
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 60)
    generation = GenerationConfig(attempts=1, return_after_seconds=0.5)
    run = build_run(tmp_path, template, [prompts[:30], prompts[30:]], generation=generation)
    with start_simulator(2, enable_metrics=True, **FLAGS) as servers:
        servers[0].set_faults(hang=True)
        async with (
            run.dispatch(servers) as dispatcher,
            watch_stalls(dispatcher, STALL_SECONDS),
        ):
            context = run.context(dispatcher)
            # The deadline of a request is some minutes away: without the watch this would hang.
            receipt = await asyncio.wait_for(generate_chunk(context, run.plan.chunks[0]), 60)
            assert receipt.footer.n_failed == 0
            outcomes = run.read_outcomes(receipt.key)
            assert {turn.endpoint for each in outcomes for turn in each.completions} == {
                servers[1].base_url
            }
            hung = dispatcher.loads()[0]
            assert (hung.n_answered, hung.n_in_flight) == (0, 0)
            assert hung.n_errors > 0

            servers[0].set_faults()
            # The second chunk may be over before the server is asked again, on a fast machine.
            async with asyncio.timeout(60):
                while dispatcher.loads()[0].state != "trial":
                    assert dispatcher.loads()[0].n_answered == 0
                    await asyncio.sleep(0.05)
            second = await generate_chunk(context, run.plan.chunks[1])
            assert second.footer.n_failed == 0
            assert dispatcher.loads()[0].n_answered > 0
