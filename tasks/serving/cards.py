"""The cards as the driver tells of them: memory in use, compute capability, NVLink.

Enters: GPU indices in the driver's order. Leaves: a Card each, or None without a driver. It exists
because a server that died may hold its memory for a while after it left the process list: a restart
before that ends as out of memory, and uses up a restart for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pynvml

_LINKS = 18
_POLL_SECONDS = 0.5
# What a driver's context and a desktop come and go with.
_TOLERATED_MIB = 1024


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU; memory in MiB."""

    index: int
    capability: tuple[int, int]
    memory_used_mib: int
    memory_total_mib: int
    nvlink: bool


ReadCards = Callable[[Sequence[int]], "tuple[Card, ...] | None"]


def read_cards(indices: Sequence[int]) -> tuple[Card, ...] | None:
    """Ask the driver; None: there is none, or it does not know one of the cards."""
    try:
        with _nvml():
            return tuple(_read_card(index) for index in indices)
    except pynvml.NVMLError:
        return None


async def await_memory(
    before: Sequence[Card], seconds: float, stop: asyncio.Event, *, read: ReadCards = read_cards
) -> str:
    """Wait until the cards hold no more than they did before; say which does not in time, or "".

    The wait ends early where `stop` is set.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        held = await asyncio.to_thread(find_held, before, read)
        if not held or stop.is_set() or loop.time() >= deadline:
            return held
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _POLL_SECONDS)


def find_held(before: Sequence[Card], read: ReadCards = read_cards) -> str:
    """Say which cards hold more than they did before, or "".

    In a container the process list is not to be believed; memory in use is.
    """
    cards = read([card.index for card in before])
    held = [
        f"GPU {now.index} still holds {now.memory_used_mib - then.memory_used_mib:,} MiB"
        for then, now in zip(before, cards or (), strict=cards is not None)
        if now.memory_used_mib > then.memory_used_mib + _TOLERATED_MIB
    ]
    return f"{', '.join(held)} of a server that has ended" if held else ""


@contextmanager
def _nvml() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _read_card(index: int) -> Card:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Card(
        index=index,
        capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_used_mib=int(memory.used) // 2**20,
        memory_total_mib=int(memory.total) // 2**20,
        nvlink=any(_is_linked(handle, link) for link in range(_LINKS)),
    )


def _is_linked(handle: object, link: int) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
    except pynvml.NVMLError:
        return False
