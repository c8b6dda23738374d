"""The simulated servers of a benchmark, and whether they were what held it up.

A benchmark of the client says nothing where the simulator was the slower side: each run is watched,
and one whose servers used most of a core, or answered late, is void.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.simulator import SimulatedServer

MAX_CPU_SHARE = 0.8
MAX_LAG_SECONDS = 0.25
_WATCH_SECONDS = 0.2


@dataclass(slots=True)
class Watch:
    """What the servers did between the start and the end of a measurement.

    Attributes:
        cpu_share: The busiest server's share of a core.
        busy_slot_seconds: Slot-seconds in which a request ran, over all servers.
        wall_seconds: From start to end.
        lags: Seconds that a server took to say how it is, one sample after the other.
    """

    cpu_share: float = 0.0
    busy_slot_seconds: float = 0.0
    wall_seconds: float = 0.0
    lags: list[float] = field(default_factory=list)


def find_bottleneck(watches: Sequence[Watch]) -> str | None:
    """Say what made measurements of one kind void, if anything did.

    Lags are judged by the median of all: the first requests of a run come all at once.
    """
    share = max(watched.cpu_share for watched in watches)
    if share > MAX_CPU_SHARE:
        return f"a simulator used {share:.0%} of a core (limit {MAX_CPU_SHARE:.0%})"
    lags = [lag for watched in watches for lag in watched.lags]
    lag = statistics.median(lags) if lags else 0.0
    if lag > MAX_LAG_SECONDS:
        return f"the simulators answered {lag:.2f} s late (limit {MAX_LAG_SECONDS} s)"
    return None


@contextmanager
def watch(servers: Sequence[SimulatedServer]) -> Iterator[Watch]:
    """Watch the servers for the time of a with block."""
    seen = Watch()
    before = [server.stats() for server in servers]
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(_WATCH_SECONDS):
            began = time.monotonic()
            servers[0].stats()
            seen.lags.append(time.monotonic() - began)

    thread = threading.Thread(target=ask)
    thread.start()
    began = time.monotonic()
    try:
        yield seen
    finally:
        seen.wall_seconds = time.monotonic() - began
        after = [server.stats() for server in servers]
        ended.set()
        thread.join()
        shares = [_grow(a, b, "cpu_seconds") for a, b in zip(before, after, strict=True)]
        seen.cpu_share = max(shares) / seen.wall_seconds
        seen.busy_slot_seconds = sum(
            _grow(a, b, "busy_slot_seconds") for a, b in zip(before, after, strict=True)
        )


def _grow(before: dict[str, Any], after: dict[str, Any], name: str) -> float:
    return float(after[name]) - float(before[name])
