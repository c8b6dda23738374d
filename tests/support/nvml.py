"""A driver's library that says what a test wants: it stands in for pynvml, errors included."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 2**20


def refuse(number: int) -> Callable[..., Any]:
    """A call that the library refuses."""

    def call(*arguments: Any) -> Any:
        raise pynvml.NVMLError(number)

    return call


def make_library(n_gpus: int = 2, **answers: Any) -> SimpleNamespace:
    """A library with idle cards; `answers` replaces calls, by the end of their names."""

    def nvlink(handle: int, link: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    calls: dict[str, Any] = {
        "Init": lambda: None,
        "Shutdown": lambda: None,
        "SystemGetDriverVersion": lambda: "580.105.08",
        "SystemGetCudaDriverVersion_v2": lambda: 13000,
        "DeviceGetCount": lambda: n_gpus,
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetName": lambda handle: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=97887 * MIB, used=4 * MIB),
        "DeviceGetCudaComputeCapability": lambda handle: (12, 0),
        "DeviceGetMigMode": lambda handle: (0, 0),
        "DeviceGetCurrentClocksThrottleReasons": lambda handle: 1,
        "DeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle:02X}:00.0"),
        "DeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
        "DeviceGetComputeRunningProcesses_v3": lambda handle: [],
        "DeviceGetNvLinkState": nvlink,
        "DeviceGetCurrPcieLinkWidth": lambda handle: 16,
        "DeviceGetMaxPcieLinkWidth": lambda handle: 16,
        "DeviceGetP2PStatus": lambda first, second, kind: pynvml.NVML_P2P_STATUS_OK,
        "DeviceGetTopologyCommonAncestor": lambda first, second: 40,
    }
    return SimpleNamespace(**{f"nvml{name}": call for name, call in (calls | answers).items()})
