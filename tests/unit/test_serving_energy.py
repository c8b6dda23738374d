"""The energy of a part is what the GPUs' counters rose by, and unknown where a card is silent."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pynvml
import pytest

from tasks.serving.energy import EnergyMeter
from tests.support.nvml import make_library, refuse

MILLIJOULES_A_WATT_HOUR = 3_600_000


def count_up(counters: dict[int, int]) -> Any:
    return make_library(DeviceGetTotalEnergyConsumption=lambda handle: counters[handle])


def test_each_look_tells_what_was_used_since_the_one_before() -> None:
    counters = {0: 5_000, 1: 7_000, 2: 0}
    meter = EnergyMeter([0, 1], count_up(counters))
    counters |= {0: 5_000 + MILLIJOULES_A_WATT_HOUR, 1: 7_000 + 2 * MILLIJOULES_A_WATT_HOUR}
    counters[2] = 10**12  # a card of somebody else
    assert meter.take() == pytest.approx(3.0)
    assert meter.take() == 0.0


def test_a_card_that_does_not_count_makes_the_sum_unknown() -> None:
    silent = make_library(DeviceGetTotalEnergyConsumption=refuse(pynvml.NVML_ERROR_NOT_SUPPORTED))
    assert EnergyMeter([0], silent).take() is None
    no_driver = make_library(Init=refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert EnergyMeter([0], no_driver).take() is None


def test_counters_that_began_anew_are_not_believed() -> None:
    counters = {0: 10 * MILLIJOULES_A_WATT_HOUR}
    meter = EnergyMeter([0], count_up(counters))
    counters[0] = 0  # the driver was loaded again
    assert meter.take() is None
    counters[0] = MILLIJOULES_A_WATT_HOUR
    assert meter.take() == pytest.approx(1.0)


def test_parts_that_end_together_do_not_count_the_same_energy_twice() -> None:
    counters, both = {0: 0}, threading.Barrier(2)

    def read(handle: int) -> int:
        if counters[handle]:
            # Where two look at once, both are within the library before either is done.
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
        return counters[handle]

    meter = EnergyMeter([0], make_library(DeviceGetTotalEnergyConsumption=read))
    counters[0] = MILLIJOULES_A_WATT_HOUR
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(meter.take) for _ in range(2)]
    assert sorted(each.result() or 0.0 for each in taken) == [0.0, pytest.approx(1.0)]
