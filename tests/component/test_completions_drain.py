"""A run that is told to stop lets its requests end, and asks for none of them again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tasks.completions.generate import generate_chunk
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import start_simulator

N_PROMPTS = 60


@pytest.mark.real
async def test_what_is_in_flight_ends_and_is_kept_and_nothing_new_is_sent(tmp_path: Path) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, N_PROMPTS)])
    chunk = run.plan.chunks[0]
    with start_simulator(1, sim_mean_tokens=60, sim_time_scale=0.2, max_running_requests=8) as (
        server,
    ):
        async with run.dispatch([server]) as dispatcher:
            generating = asyncio.create_task(generate_chunk(run.context(dispatcher), chunk))
            async with asyncio.timeout(60):
                while not server.stats()["outcomes"].get("completed"):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert await dispatcher.drain(60) == 0
            n_ended = server.stats()["outcomes"]["completed"]
            assert 0 < n_ended < N_PROMPTS
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)
        assert server.stats()["outcomes"] == {"completed": n_ended}, "nothing was aborted"

        async with run.dispatch([server]) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), chunk)
        assert receipt.footer.n_rows == N_PROMPTS
        assert server.stats()["outcomes"] == {"completed": N_PROMPTS}, "nothing is asked for twice"
