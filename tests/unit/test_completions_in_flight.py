"""Requests under way: each ends at its own deadline, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tasks.completions.in_flight import DeadlineExceeded, InFlight, Stalled

LONG = 3600.0
# Far more than any of this takes: a deadline that never comes must not hang.
SECONDS = 60.0


@pytest.fixture
def flight() -> Iterator[InFlight]:
    flight = InFlight()
    yield flight
    flight.close()


async def wait_for(flight: InFlight, url: str, seconds: float, answer: asyncio.Event) -> str:
    with flight.hold(url, seconds):
        await answer.wait()
    return "answered"


async def end(*tasks: asyncio.Task[str]) -> list[str | BaseException]:
    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def test_each_request_ends_at_its_own_deadline_though_one_alarm_serves_all(
    flight: InFlight,
) -> None:
    answer = asyncio.Event()
    late = asyncio.create_task(wait_for(flight, "a", LONG, answer))
    # Begun later and due earlier, twice: the alarm is set forward, and again once it has rung.
    for _ in range(2):
        (failure,) = await end(asyncio.create_task(wait_for(flight, "a", 0.05, answer)))
        assert isinstance(failure, DeadlineExceeded)
        assert str(failure) == "no answer within 0 s"
    assert not late.done()
    answer.set()
    assert await end(late) == ["answered"]


async def test_an_alarm_for_a_request_that_was_answered_is_set_to_the_next_deadline(
    flight: InFlight,
) -> None:
    answer, never = asyncio.Event(), asyncio.Event()
    answer.set()
    first, second = await end(
        asyncio.create_task(wait_for(flight, "a", 0.01, answer)),
        asyncio.create_task(wait_for(flight, "a", 0.1, never)),
    )
    assert first == "answered"
    assert isinstance(second, DeadlineExceeded)


async def test_a_server_that_stalls_loses_its_requests_and_no_other_one(flight: InFlight) -> None:
    answer = asyncio.Event()
    stalled = asyncio.create_task(wait_for(flight, "stalled", LONG, answer))
    sound = asyncio.create_task(wait_for(flight, "sound", LONG, answer))
    await asyncio.sleep(0)
    flight.take_back_all("stalled")
    flight.take_back_all("stalled")
    (failure,) = await end(stalled)
    assert isinstance(failure, Stalled)
    answer.set()
    assert await end(sound) == ["answered"]


async def test_who_is_cancelled_from_outside_is_cancelled(flight: InFlight) -> None:
    task = asyncio.create_task(wait_for(flight, "a", LONG, asyncio.Event()))
    await asyncio.sleep(0)
    flight.take_back_all("a")
    task.cancel()
    (ended,) = await end(task)
    assert isinstance(ended, asyncio.CancelledError)


async def test_a_cancellation_that_a_library_swallows_comes_again_and_leaves_no_trace(
    flight: InFlight,
) -> None:
    never = asyncio.Event()

    async def swallow_one() -> None:
        with suppress(asyncio.CancelledError):
            await never.wait()

    async def ask_in_turn() -> list[int]:
        task = asyncio.current_task()
        assert task is not None
        with flight.hold("a", 0.01):
            await swallow_one()
        counts = [task.cancelling()]
        with pytest.raises(DeadlineExceeded), flight.hold("a", 0.01):
            await swallow_one()
            await never.wait()
        return [*counts, task.cancelling()]

    async with asyncio.timeout(SECONDS):
        assert await asyncio.create_task(ask_in_turn()) == [0, 0]


async def test_what_was_answered_is_not_taken_back_afterwards(flight: InFlight) -> None:
    answer = asyncio.Event()
    answer.set()
    assert await wait_for(flight, "a", 0.01, answer) == "answered"
    flight.take_back_all("a")
    # The alarm of the answered request rings, and finds nothing.
    await asyncio.sleep(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
