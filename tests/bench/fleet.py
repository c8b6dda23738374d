"""The simulated servers of a benchmark, and whether they were what held it up.

A benchmark of the client says nothing where the simulator was the slower side: each run is watched,
and one whose servers used most of a core, or answered late, is void.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.simulator import SimulatedServer

MAX_CPU_SHARE = 0.8
MAX_LAG_SECONDS = 0.25
_WATCH_SECONDS = 0.5


@dataclass(slots=True)
class Watch:
    """What the servers did between the start and the end of a measurement.

    Attributes:
        cpu_share: The busiest server's share of a core.
        lag_seconds: The median time that a server took to say how it is.
        busy_slot_seconds: Slot-seconds in which a request ran, over all servers.
        wall_seconds: From start to end.
    """

    cpu_share: float = 0.0
    lag_seconds: float = 0.0
    busy_slot_seconds: float = 0.0
    wall_seconds: float = 0.0
    lags: list[float] = field(default_factory=list)

    def find_bottleneck(self) -> str | None:
        """Say what made the measurement void, if anything did."""
        if self.cpu_share > MAX_CPU_SHARE:
            return f"a simulator used {self.cpu_share:.0%} of a core (limit {MAX_CPU_SHARE:.0%})"
        if self.lag_seconds > MAX_LAG_SECONDS:
            return (
                f"the simulators answered {self.lag_seconds:.2f} s late (limit {MAX_LAG_SECONDS} s)"
            )
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
        seen.lag_seconds = sorted(seen.lags)[len(seen.lags) // 2] if seen.lags else 0.0


def _grow(before: dict[str, Any], after: dict[str, Any], name: str) -> float:
    return float(after[name]) - float(before[name])
