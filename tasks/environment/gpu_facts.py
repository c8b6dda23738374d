"""Reads the GPUs through NVML; an NVML error becomes a fact of its own, never an exception.

Enters: the NVML library (nvidia-ml-py, or an object that answers like it). Leaves: NvmlFacts. What
a card refuses to tell is None; only errors that concern the whole driver end the reading.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from typing import Any

import psutil
import pynvml

from tasks.environment.box_facts import GpuFacts, GpuProcess, NvmlFacts, PairFacts

_MIB = 2**20
_MOST_NVLINKS = 18
# Name in symptoms.NVML_MEANING of each NVML error that has a remedy of its own.
_NVML_ERRORS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "LibraryNotFound",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "LibRmVersionMismatch",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "DriverNotLoaded",
    pynvml.NVML_ERROR_GPU_IS_LOST: "GpuIsLost",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "NotSupported",
}
# After these nothing else that the library says can be believed.
_OF_THE_DRIVER = frozenset(
    {
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_UNINITIALIZED,
    }
)
# Bits of the clocks' event reasons; a software power cap (4) is the owner's choice.
_THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def read_nvml(nvml: Any = pynvml) -> NvmlFacts:
    """Read driver and GPUs."""
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlFacts(error=name_nvml_error(error))
    driver_version = ""
    try:
        driver_version = _text(nvml.nvmlSystemGetDriverVersion())
        handles = [
            nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
        ]
        return NvmlFacts(
            driver_version=driver_version,
            cuda_version=_ask(nvml.nvmlSystemGetCudaDriverVersion_v2),
            gpus=tuple(_read_gpu(nvml, index, handle) for index, handle in enumerate(handles)),
            pairs=tuple(
                _read_pair(nvml, first, second, handles)
                for first, second in combinations(range(len(handles)), 2)
            ),
        )
    except pynvml.NVMLError as error:
        return NvmlFacts(error=name_nvml_error(error), driver_version=driver_version)
    finally:
        with suppress(pynvml.NVMLError):
            nvml.nvmlShutdown()


def name_nvml_error(error: pynvml.NVMLError) -> str:
    """Return the name of an NVML error in `symptoms.NVML_MEANING`."""
    return _NVML_ERRORS.get(error.value, "Unknown")


def _read_gpu(nvml: Any, index: int, handle: Any) -> GpuFacts:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    mig = _ask(nvml.nvmlDeviceGetMigMode, handle, unsupported=(0, 0))
    reasons = _ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    bus = _ask(nvml.nvmlDeviceGetPciInfo, handle)
    return GpuFacts(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        capability=None if capability is None else (int(capability[0]), int(capability[1])),
        memory_total_mib=int(memory.total) // _MIB,
        memory_used_mib=int(memory.used) // _MIB,
        bus_id="" if bus is None else _text(bus.busId),
        processes=_read_processes(nvml, handle),
        mig=None if mig is None else bool(mig[0]),
        ecc_errors=_ask(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        throttled_by=(
            None
            if reasons is None
            else tuple(name for bit, name in _THROTTLES.items() if reasons & bit)
        ),
        n_nvlinks=_count_nvlinks(nvml, handle),
        # An idle card trains its link down: only the width is compared, and not the generation.
        pcie_width=_ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=_ask(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
    )


def _read_processes(nvml: Any, handle: Any) -> tuple[GpuProcess, ...] | None:
    running = _ask(nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    if running is None:
        return None
    return tuple(
        GpuProcess(pid=int(process.pid), name=_name_process(int(process.pid)))
        for process in running
    )


def _name_process(pid: int) -> str:
    """Name a process by its command; empty: it is gone, or lies outside this container."""
    with suppress(psutil.Error, OSError):
        command = psutil.Process(pid).cmdline()
        return " ".join(command)[:80] or psutil.Process(pid).name()
    return ""


def _count_nvlinks(nvml: Any, handle: Any) -> int | None:
    active = 0
    for link in range(_MOST_NVLINKS):
        state = _ask(nvml.nvmlDeviceGetNvLinkState, handle, link, unsupported=-1)
        if state is None:
            # Past the card's last link the library says that the argument is wrong.
            return active if link else None
        if state == -1:
            break
        active += int(state == pynvml.NVML_FEATURE_ENABLED)
    return active


def _read_pair(nvml: Any, first: int, second: int, handles: list[Any]) -> PairFacts:
    pair = (handles[first], handles[second])
    status = _ask(nvml.nvmlDeviceGetP2PStatus, *pair, pynvml.NVML_P2P_CAPS_INDEX_READ)
    return PairFacts(
        first=first,
        second=second,
        level=_ask(nvml.nvmlDeviceGetTopologyCommonAncestor, *pair),
        p2p=None if status is None else status == pynvml.NVML_P2P_STATUS_OK,
    )


def _ask(function: Callable[..., Any], *arguments: Any, unsupported: Any = None) -> Any:
    """Ask one thing; None: it is not told. An error of the whole driver goes on to the caller."""
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _OF_THE_DRIVER:
            raise
        return unsupported if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED else None


def _text(value: str | bytes) -> str:
    """Older libraries answer in bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
