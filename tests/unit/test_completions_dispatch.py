"""Slots: shared by load, never leaked, taken from servers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.completions.client import Client
from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.garbage import collect_rarely
from tasks.completions.slot import RouteGone
from tasks.errors import NoEndpoint
from tasks.serving.record import Endpoint
from tests.support.generation import make_endpoint

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
CONFIG = GenerationConfig(surplus=0, eject_after=3, return_after_seconds=0.02)


class Health(Client):
    """Says what it is told to say of every server."""

    def __init__(self, *, healthy: bool = True) -> None:
        super().__init__()
        self.healthy = healthy

    async def is_healthy(self, endpoint: Endpoint) -> bool:
        return self.healthy


def make(
    *endpoints: Endpoint, config: GenerationConfig = CONFIG, healthy: bool = True
) -> Dispatcher:
    return Dispatcher(endpoints, config, client=Health(healthy=healthy))


async def hold(dispatcher: Dispatcher, order: tuple[int, int], served: list[object]) -> None:
    async with dispatcher.slot(order) as slot:
        served.append(order)
        await asyncio.sleep(0)
        slot.succeeded()


async def test_requests_go_where_the_least_is_in_flight_for_the_size() -> None:
    async with make(make_endpoint(A, slots=2), make_endpoint(B, slots=6)) as dispatcher:
        slots = [dispatcher.slot((0, i)) for i in range(8)]
        for slot in slots:
            await slot.__aenter__()
        urls = [slot.endpoint.base_url for slot in slots]
        assert (urls.count(A), urls.count(B)) == (2, 6)
        assert urls[:4].count(A) == 1, "the smaller server gets its share from the start"
        for slot in slots:
            await slot.__aexit__(None, None, None)
        assert dispatcher.n_in_flight == 0


async def test_a_surplus_waits_at_the_server() -> None:
    config = GenerationConfig(surplus=0.25)
    async with make(make_endpoint(A, slots=8), config=config) as dispatcher:
        assert dispatcher.capacity == 10


async def test_older_chunks_are_served_first() -> None:
    async with make(make_endpoint(A, slots=1)) as dispatcher:
        served: list[object] = []
        async with dispatcher.slot((0, 0)):
            tasks = [
                asyncio.create_task(hold(dispatcher, order, served))
                for order in [(2, 0), (1, 1), (2, 1), (1, 0)]
            ]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert served == [(1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.fixture(autouse=True, scope="module")
def _rare_collections() -> Iterator[None]:
    """Collect once: a whole collection for each dispatcher would take nearly all of the time."""
    with collect_rarely():
        yield


@settings(max_examples=60, deadline=None)
@given(
    slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    steps=st.lists(
        st.tuples(st.integers(0, 11), st.sampled_from(["cancel", "yield", "fail", "leave"])),
        max_size=40,
    ),
)
def test_no_slot_leaks_whoever_is_cancelled_and_whenever(
    slots: list[int], steps: list[tuple[int, str]]
) -> None:
    async def play() -> None:
        endpoints = [make_endpoint(f"http://127.0.0.1:{i}", slots=n) for i, n in enumerate(slots)]
        config = CONFIG.model_copy(update={"eject_after": 100})
        async with make(*endpoints, config=config) as dispatcher:
            failing: set[int] = set()

            async def work(number: int) -> None:
                for _ in range(3):
                    async with dispatcher.slot((0, number)) as slot:
                        assert dispatcher.n_in_flight <= sum(slots)
                        await asyncio.sleep(0)
                        if number in failing:
                            slot.failed()
                        else:
                            slot.succeeded()

            tasks = [asyncio.create_task(work(number)) for number in range(12)]
            for number, step in steps:
                if step == "cancel":
                    tasks[number].cancel()
                elif step == "fail":
                    failing.add(number)
                elif step == "leave" and number < len(slots):
                    dispatcher.leave(endpoints[number].base_url)
                    dispatcher.join(endpoints[number])
                else:
                    await asyncio.sleep(0)
            async with asyncio.timeout(10):
                results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(r is None or isinstance(r, asyncio.CancelledError) for r in results)
            assert dispatcher.n_in_flight == 0
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                held = [dispatcher.slot((1, i)) for i in range(sum(slots))]
                for slot in held:
                    group.create_task(slot.__aenter__())
            assert dispatcher.n_in_flight == sum(slots), "every slot can be had again"

    asyncio.run(play())


async def test_failures_in_a_row_eject_and_a_passed_trial_brings_back() -> None:
    async with make(make_endpoint(A, slots=4), make_endpoint(B, slots=4)) as dispatcher:
        for _ in range(CONFIG.eject_after):
            async with dispatcher.slot((0, 0), avoid=[B]) as slot:
                ejected = slot.failed()
        assert ejected
        for _ in range(4):
            async with dispatcher.slot((0, 0), avoid=[B]) as slot:
                assert slot.endpoint.base_url == B
        async with asyncio.timeout(10):
            while True:
                async with dispatcher.slot((0, 0), avoid=[B]) as slot:
                    if slot.endpoint.base_url == A:
                        slot.succeeded()
                        break
                await asyncio.sleep(0.002)
        first, second = dispatcher.slot((0, 0), avoid=[B]), dispatcher.slot((0, 0), avoid=[B])
        async with first, second:
            assert first.endpoint.base_url == second.endpoint.base_url == A


async def test_a_success_forgets_the_failures_before_it() -> None:
    async with make(make_endpoint(A, slots=4)) as dispatcher:
        for _ in range(3):
            for _ in range(CONFIG.eject_after - 1):
                async with dispatcher.slot((0, 0)) as slot:
                    assert not slot.failed()
            async with dispatcher.slot((0, 0)) as slot:
                slot.succeeded()


async def test_a_server_on_trial_gets_one_request_and_a_failure_ejects_it_again() -> None:
    async with make(make_endpoint(A, slots=4)) as dispatcher:
        async with dispatcher.slot((0, 0)) as slot:
            assert slot.failed(refused=True), "a refused connection ejects at once"
        async with dispatcher.slot((0, 0)) as slot:  # waits for the trial
            blocked = asyncio.create_task(hold(dispatcher, (0, 1), []))
            await asyncio.sleep(0.01)
            assert not blocked.done()
            assert slot.failed()
        await asyncio.wait_for(blocked, 10)


async def test_with_none_admitted_dispatch_pauses_and_then_gives_up() -> None:
    config = CONFIG.model_copy(update={"no_endpoint_seconds": 0.1})
    async with make(make_endpoint(A), config=config, healthy=False) as dispatcher:
        async with dispatcher.slot((0, 0)) as slot:
            slot.failed(refused=True)
        began = asyncio.get_running_loop().time()
        with pytest.raises(NoEndpoint):
            await dispatcher.slot((0, 0)).__aenter__()
        assert asyncio.get_running_loop().time() - began >= 0.09
        with pytest.raises(NoEndpoint):
            await dispatcher.slot((0, 0)).__aenter__()
        dispatcher.join(make_endpoint(B))
        async with dispatcher.slot((0, 0)) as slot:
            assert slot.endpoint.base_url == B


async def test_a_server_that_joins_takes_those_who_wait_and_one_that_left_gets_none() -> None:
    async with make(make_endpoint(A, slots=1)) as dispatcher, dispatcher.slot((0, 0)):
        waiter = asyncio.create_task(hold(dispatcher, (0, 1), []))
        await asyncio.sleep(0.01)
        assert not waiter.done()
        dispatcher.join(make_endpoint(B, slots=1))
        await asyncio.wait_for(waiter, 10)
        dispatcher.leave(B)
        blocked = asyncio.create_task(hold(dispatcher, (0, 2), []))
        await asyncio.sleep(0.01)
        assert not blocked.done()
        blocked.cancel()


async def test_a_conversation_stays_on_its_route_and_hears_when_it_is_gone() -> None:
    chat = make_endpoint(A, slots=4, capability="chat")
    native = make_endpoint(B, slots=1, capability="native")
    async with make(chat, native) as dispatcher:
        async with dispatcher.slot((0, 0), route="native") as slot:
            assert slot.endpoint.base_url == B
            waiting = asyncio.create_task(dispatcher.slot((0, 1), route="native").__aenter__())
            await asyncio.sleep(0)
            dispatcher.leave(B)
            with pytest.raises(RouteGone):
                await waiting
        with pytest.raises(RouteGone):
            await dispatcher.slot((0, 2), route="native").__aenter__()


def test_a_server_without_exact_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="no exact token ids"):
        make(make_endpoint(A, capability="none"))


async def test_chunks_open_one_after_the_other_as_work_runs_out() -> None:
    async with make(make_endpoint(A, slots=10)) as dispatcher:
        window = dispatcher.window
        opened: list[int] = []
        closing = asyncio.Event()

        async def run_chunk(chunk_id: int) -> None:
            async with window.open_chunk(chunk_id, 25):
                opened.append(chunk_id)
                await closing.wait()

        tasks = [asyncio.create_task(run_chunk(chunk_id)) for chunk_id in (1, 2, 3)]
        await asyncio.sleep(0.01)
        assert opened == [1]
        window.note_begun(1, 15)
        await asyncio.sleep(0.01)
        assert opened == [1], "10 conversations wait to begin, as many as there are slots"
        window.note_begun(1)
        await asyncio.sleep(0.01)
        assert opened == [1, 2]
        tasks[2].cancel()
        window.note_begun(1, 9)
        window.note_begun(2, 25)
        await asyncio.sleep(0.01)
        assert opened == [1, 2], "a chunk that was cancelled is not opened"
        closing.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert window.n_open == 0
