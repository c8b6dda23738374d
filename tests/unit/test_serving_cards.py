"""Memory of the cards is seen free before a server is started on them again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pynvml
import pytest

from tasks.serving.cards import Card, await_memory, read_cards


def card(index: int, used: int) -> Card:
    return Card(index, (12, 0), used, 97_887, nvlink=False)


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def readings(*used: int) -> Iterator[tuple[Card, ...]]:
    for each in used:
        yield (card(3, each),)
    while True:
        yield (card(3, used[-1]),)


def test_a_restart_waits_until_the_dead_servers_memory_is_free() -> None:
    clock, reads = Clock(), readings(84_000, 84_000, 40_000, 700)
    held = await_memory(
        (card(3, 500),), 60, read=lambda _: next(reads), clock=clock, sleep=clock.sleep
    )
    assert held == ""
    assert clock.now == pytest.approx(1.5)


def test_memory_that_stays_held_is_told_with_the_card() -> None:
    clock, reads = Clock(), readings(84_000)
    held = await_memory(
        (card(3, 500),), 60, read=lambda _: next(reads), clock=clock, sleep=clock.sleep
    )
    assert held == "GPU 3 still holds 83,500 MiB of a server that has ended"
    assert clock.now == pytest.approx(60)


def test_what_was_in_use_before_is_not_waited_for() -> None:
    clock, reads = Clock(), readings(30_000)
    assert await_memory((card(3, 30_000),), 60, read=lambda _: next(reads), clock=clock) == ""
    assert clock.now == 0


def test_without_a_driver_nothing_is_known_and_nothing_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise pynvml.NVMLError_LibraryNotFound

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert read_cards([0]) is None

    def read(_: Sequence[int]) -> None:
        return None

    assert await_memory((card(0, 0),), 60, read=read) == ""
