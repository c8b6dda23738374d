"""Memory of the cards is seen free before a server is started on them again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pynvml
import pytest

from tasks.serving.cards import Card, await_memory, find_held, read_cards


def card(index: int, used: int) -> Card:
    return Card(index, (12, 0), used, 97_887, nvlink=False)


def readings(*used: int) -> Iterator[tuple[Card, ...]]:
    for each in used:
        yield (card(3, each),)
    while True:
        yield (card(3, used[-1]),)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.serving.cards._POLL_SECONDS", 0.005)


async def test_a_restart_waits_until_the_dead_servers_memory_is_free() -> None:
    reads = readings(84_000, 84_000, 40_000, 700)
    n_reads = 0

    def read(_: Sequence[int]) -> tuple[Card, ...]:
        nonlocal n_reads
        n_reads += 1
        return next(reads)

    assert await await_memory((card(3, 500),), 60, asyncio.Event(), read=read) == ""
    assert n_reads == 4


async def test_memory_that_stays_held_is_told_with_the_card() -> None:
    reads = readings(84_000)
    held = await await_memory((card(3, 500),), 0.05, asyncio.Event(), read=lambda _: next(reads))
    assert held == "GPU 3 still holds 83,500 MiB of a server that has ended"


async def test_a_fleet_that_ends_does_not_wait_for_the_memory() -> None:
    stop, reads = asyncio.Event(), readings(84_000)
    waiting = asyncio.create_task(
        await_memory((card(3, 500),), 3600, stop, read=lambda _: next(reads))
    )
    await asyncio.sleep(0.02)
    assert not waiting.done()
    stop.set()
    async with asyncio.timeout(30):
        assert "GPU 3 still holds" in await waiting


def test_what_was_in_use_before_is_not_waited_for() -> None:
    reads = readings(30_000)
    assert find_held((card(3, 30_000),), lambda _: next(reads)) == ""


def test_without_a_driver_nothing_is_known_and_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert read_cards([0]) is None

    def read(_: Sequence[int]) -> None:
        return None

    assert find_held((card(0, 0),), read) == ""
