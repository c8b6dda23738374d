"""Requests under way: each ends at its own deadline, whatever becomes of the others."""

from __future__ import annotations

import asyncio

import pytest

from tasks.completions.in_flight import DeadlineExceeded, InFlight, Stalled

LONG = 3600.0


async def wait_for_answer(flight: InFlight, url: str, seconds: float, answer: asyncio.Event) -> str:
    waiting = flight.begin(url, seconds)
    try:
        await answer.wait()
    except asyncio.CancelledError:
        if waiting.failure is not None and waiting.task.uncancel() == 0:
            return repr(waiting.failure)
        raise
    finally:
        flight.end(waiting)
    return "answered"


async def test_each_request_ends_at_its_own_deadline_though_one_alarm_serves_all() -> None:
    flight, answer = InFlight(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        late = group.create_task(wait_for_answer(flight, "a", LONG, answer))
        # Begun later and due earlier, twice: the alarm is set forward, and again once it has rung.
        for _ in range(2):
            early = group.create_task(wait_for_answer(flight, "a", 0.05, answer))
            await asyncio.wait({early})
            assert early.result() == repr(DeadlineExceeded("no answer within 0 s"))
        # The alarm is back at the late one, which can still be answered.
        assert not late.done()
        answer.set()
    assert late.result() == "answered"
    flight.close()


async def test_an_alarm_for_a_request_that_was_answered_is_set_to_the_next_deadline() -> None:
    flight, answer, never = InFlight(), asyncio.Event(), asyncio.Event()
    answer.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(wait_for_answer(flight, "a", 0.01, answer))
        due = group.create_task(wait_for_answer(flight, "a", 0.1, never))
    assert due.result() == repr(DeadlineExceeded("no answer within 0 s"))


async def test_a_server_that_stalls_loses_its_requests_and_no_other_one() -> None:
    flight, answer = InFlight(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        stalled = group.create_task(wait_for_answer(flight, "stalled", LONG, answer))
        sound = group.create_task(wait_for_answer(flight, "sound", LONG, answer))
        await asyncio.sleep(0)
        flight.take_back_all("stalled")
        flight.take_back_all("stalled")
        await asyncio.wait({stalled})
        answer.set()
    assert stalled.result() == repr(Stalled("the server generates nothing"))
    assert sound.result() == "answered"
    flight.close()


async def test_who_is_cancelled_from_outside_is_cancelled() -> None:
    flight = InFlight()
    task = asyncio.create_task(wait_for_answer(flight, "a", LONG, asyncio.Event()))
    await asyncio.sleep(0)
    flight.take_back_all("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    flight.close()


async def test_what_was_answered_is_not_taken_back_afterwards() -> None:
    flight, answer = InFlight(), asyncio.Event()
    answer.set()
    assert await wait_for_answer(flight, "a", 0.01, answer) == "answered"
    flight.take_back_all("a")
    # The alarm of the answered request rings, and finds nothing.
    await asyncio.sleep(0.05)
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]
    flight.close()
