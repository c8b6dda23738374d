"""How much energy the servers' GPUs have used, by the counters that their driver keeps.

Enters: indices of GPUs, the NVML library. Leaves: watt-hours since the last look. It exists so that
a report can say what a dataset cost in energy and not only in hours: the counters run whether or
not anybody looks, so one look a part is enough.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pynvml

_MILLIJOULES_A_WATT_HOUR = 3_600_000.0


class EnergyMeter:
    """Reads the counters of some GPUs; where one of them tells nothing, nothing is told."""

    def __init__(self, gpus: Sequence[int], nvml: Any = pynvml) -> None:
        """Begin to count now.

        Args:
            gpus: Indices on this host.
            nvml: The NVML library, or an object that answers like it.
        """
        self._gpus = tuple(gpus)
        self._nvml = nvml
        # Parts are written on threads: two that end together must not count the same joules.
        self._lock = threading.Lock()
        self._before = self._read()

    def take(self) -> float | None:
        """Give the watt-hours since the last call, or since the beginning; None: not known."""
        with self._lock:
            before, now = self._before, self._read()
            self._before = now
        if before is None or now is None or now < before:
            return None
        return (now - before) / _MILLIJOULES_A_WATT_HOUR

    def _read(self) -> int | None:
        """Add up the millijoules that the driver has counted since it was loaded."""
        nvml = self._nvml
        try:
            nvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in self._gpus]
            used = [nvml.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
            return sum(map(int, used))
        except pynvml.NVMLError:  # a card older than Volta, or one that is lost
            return None
        finally:
            with suppress(pynvml.NVMLError):
                nvml.nvmlShutdown()
