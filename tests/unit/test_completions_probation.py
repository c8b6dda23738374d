"""Servers that come back, and dispatch that comes to rest."""

from __future__ import annotations

import asyncio

import pytest

from tasks.completions.dispatch import Dispatcher
from tasks.completions.roster import EndpointLoad
from tasks.completions.slot import RouteGone
from tasks.serving.record import Endpoint, Refusal
from tests.support.generation import make_endpoint
from tests.unit.test_completions_dispatch import CONFIG, A, Health, hold, make


async def test_draining_gives_no_slot_and_waits_for_those_held() -> None:
    async with make(make_endpoint(A, slots=2)) as dispatcher:
        served: list[object] = []
        async with dispatcher.slot((0, 0)):
            draining = asyncio.create_task(dispatcher.drain(10))
            waiting = asyncio.create_task(hold(dispatcher, (0, 1), served))
            await asyncio.sleep(0.01)
            assert not draining.done()
            assert not waiting.done(), "a slot is free and not given"
        assert await draining == 0
        assert served == []
        waiting.cancel()


async def test_draining_ends_at_its_limit_and_tells_what_is_in_flight() -> None:
    async with make(make_endpoint(A, slots=2)) as dispatcher, dispatcher.slot((0, 0)):
        assert await dispatcher.drain(0.01) == 1


class Prober:
    """Says of a returning server what it is told to say."""

    def __init__(self, *answers: Endpoint | Refusal) -> None:
        self.answers = list(answers)
        self.n_asked = 0

    async def __call__(self, base_url: str) -> Endpoint | Refusal:
        self.n_asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_a_server_that_returns_with_another_model_is_refused_until_it_is_the_same() -> None:
    ours = make_endpoint(A, slots=4)
    prober = Prober(*[Refusal(A, "it serves other, not simulated")] * 3, ours)
    dispatcher = Dispatcher([ours], CONFIG, client=Health(), probe=prober)
    async with dispatcher:
        async with dispatcher.slot((0, 0)) as slot:
            slot.failed(refused=True)
        waiting = asyncio.create_task(hold(dispatcher, (0, 1), []))
        async with asyncio.timeout(10):
            while prober.n_asked < 3:
                await asyncio.sleep(0.005)
                assert not waiting.done()
            await waiting
        assert prober.n_asked == 4


async def test_a_server_that_returns_changed_counts_as_what_it_is_now() -> None:
    before = make_endpoint(A, slots=4)
    now = make_endpoint(A, slots=6, version="0.5.23", capability="chat")
    dispatcher = Dispatcher([before], CONFIG, client=Health(), probe=Prober(now))
    async with dispatcher:
        async with dispatcher.slot((0, 0)) as slot:
            slot.failed(refused=True)
        with pytest.raises(RouteGone):
            async with asyncio.timeout(10):
                await dispatcher.slot((0, 1), route="native").__aenter__()
        async with dispatcher.slot((0, 2)) as slot:
            assert slot.endpoint == now
        assert dispatcher.capacity == 6
        assert dispatcher.server_versions[A] == "0.5.23"


async def test_each_server_tells_what_it_holds_answered_and_failed() -> None:
    async with make(make_endpoint(A, slots=4)) as dispatcher:
        for outcome in (True, True, False):
            async with dispatcher.slot((0, 0)) as slot:
                slot.succeeded() if outcome else slot.failed()
        async with dispatcher.slot((0, 0)):
            (load,) = dispatcher.loads()
    assert load == EndpointLoad(A, "admitted", 4, n_in_flight=1, n_answered=2, n_errors=1)


async def test_a_server_that_returns_with_the_same_route_keeps_its_conversations() -> None:
    before = make_endpoint(A, slots=4)
    now = make_endpoint(A, slots=6, version="0.5.13")
    dispatcher = Dispatcher([before], CONFIG, client=Health(), probe=Prober(now))
    async with dispatcher:
        async with dispatcher.slot((0, 0)) as slot:
            slot.failed(refused=True)
        async with asyncio.timeout(10), dispatcher.slot((0, 1), route="native") as slot:
            assert slot.endpoint == now
