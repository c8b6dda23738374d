"""The batch engine keeps time: step time, slots, first come first served, aborts."""

from __future__ import annotations

import asyncio

import pytest

from infra.simulator.engine import Engine, Job


def _engine(max_running: int = 4, base: float = 0.002, slope: float = 0.001) -> Engine:
    return Engine(
        max_running=max_running,
        step_base_seconds=base,
        step_slope_seconds=slope,
        time_scale=1.0,
    )


async def _finish(*jobs: Job) -> list[int]:
    return [await job.ended for job in jobs]


async def test_a_generation_takes_its_tokens_times_the_step() -> None:
    engine, loop = _engine(), asyncio.get_running_loop()
    started = loop.time()
    assert await _finish(engine.submit("a", 50)) == [50]
    assert 0.15 <= loop.time() - started < 0.4  # 50 * (2 + 1) ms, and what the box adds


async def test_a_batch_shares_the_step_time() -> None:
    engine, loop = _engine(max_running=4), asyncio.get_running_loop()
    started = loop.time()
    await _finish(*(engine.submit(str(i), 50) for i in range(4)))
    assert 0.3 <= loop.time() - started < 0.6  # 50 * (2 + 4) ms: not four times one alone


async def test_only_max_running_run_and_the_rest_come_in_order() -> None:
    engine = _engine(max_running=2)
    order: list[str] = []
    jobs = [engine.submit(name, 10) for name in "abcdef"]

    async def follow(job: Job) -> None:
        await job.ended
        order.append(job.rid)

    followers = [asyncio.create_task(follow(job)) for job in jobs]
    await asyncio.sleep(0)
    assert (engine.n_running, engine.n_queued) == (2, 4)
    await asyncio.gather(*followers)
    assert order == list("abcdef")
    assert engine.max_running_seen == 2
    assert engine.max_in_flight_seen == 6
    assert engine.n_in_flight == 0


async def test_short_ones_overtake_long_ones_that_run_beside_them() -> None:
    engine = _engine(max_running=2)
    long, short = engine.submit("long", 60), engine.submit("short", 5)
    await short.ended
    assert not long.ended.done()
    await long.ended


async def test_an_abort_tells_how_far_it_came_and_frees_the_slot() -> None:
    engine = _engine(max_running=1)
    running, queued = engine.submit("a-1", 10_000), engine.submit("a-2", 10_000)
    after = engine.submit("b", 1)
    await asyncio.sleep(0.1)
    engine.abort("a-")
    assert running.aborted and queued.aborted
    assert 0 < await running.ended < 10_000
    assert await queued.ended == 0
    assert await asyncio.wait_for(after.ended, 5) == 1


async def test_a_hung_engine_makes_no_progress_until_it_is_released() -> None:
    engine = _engine()
    engine.set_speed(slowness=1.0, hung=True)
    job = engine.submit("a", 5)
    await asyncio.sleep(0.2)
    assert not job.ended.done()
    engine.set_speed(slowness=1.0, hung=False)
    assert await asyncio.wait_for(job.ended, 5) == 5


async def test_slowness_stretches_the_step() -> None:
    engine, loop = _engine(), asyncio.get_running_loop()
    engine.set_speed(slowness=5.0, hung=False)
    started = loop.time()
    await _finish(engine.submit("a", 20))
    assert loop.time() - started >= 0.3


async def test_busy_slot_seconds_add_up_the_time_of_running_requests() -> None:
    engine = _engine(max_running=2)
    await _finish(engine.submit("a", 50), engine.submit("b", 50))
    engine.settle()
    assert engine.busy_slot_seconds == pytest.approx(2 * 50 * 0.004, rel=0.5)


async def test_nothing_to_generate_ends_at_once() -> None:
    assert await asyncio.wait_for(_engine().submit("a", 0).ended, 5) == 0
