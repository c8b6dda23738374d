"""NVML absent, mismatched and full of surprises: each becomes a fact and a verdict of its own."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pynvml
import pytest

from tasks.environment.gpu_facts import name_nvml_error, read_nvml
from tasks.environment.kernel_facts import parse_xids, read_xids
from tasks.environment.symptoms import NVML_MEANING
from tests.support.boxes import judged, make_facts, make_profile
from tests.support.nvml import MIB, make_library, refuse

UNSUPPORTED = refuse(pynvml.NVML_ERROR_NOT_SUPPORTED)
FORBIDDEN = refuse(pynvml.NVML_ERROR_NO_PERMISSION)
TWO = make_profile(gpus=(0, 1))


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "LibraryNotFound"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LibRmVersionMismatch"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "DriverNotLoaded"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GpuIsLost"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "NotSupported"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown"),
        (pynvml.NVML_ERROR_TIMEOUT, "Unknown"),
    ],
)
def test_each_nvml_error_becomes_its_own_verdict(number: int, name: str) -> None:
    assert name_nvml_error(pynvml.NVMLError(number)) == name
    facts = read_nvml(make_library(Init=refuse(number)))
    assert facts.error == name
    found = judged(make_facts(nvml=facts))["nvml"]
    assert found.summary == NVML_MEANING[name][0]
    assert found.fix is not None
    assert found.fix.id == f"nvml_{name.lower()}"


def test_idle_cards_are_read_whole() -> None:
    facts = read_nvml(make_library())
    assert (facts.error, facts.driver_version, facts.cuda_version) == ("", "580.105.08", 13000)
    first = facts.gpus[0]
    assert (first.capability, first.memory_total_mib, first.bus_id) == (
        (12, 0),
        97887,
        "00000000:00:00.0",
    )
    assert (first.mig, first.ecc_errors, first.throttled_by, first.n_nvlinks) == (False, 0, (), 0)
    assert [(p.first, p.second, p.level, p.p2p) for p in facts.pairs] == [(0, 1, 40, True)]
    found = judged(make_facts(nvml=facts), TWO)
    assert {found[c].status for c in ("nvml", "gpus", "gpu_memory", "mig", "topology")} == {"ok"}


def test_a_card_that_is_lost_in_the_middle_ends_the_reading() -> None:
    def memory(handle: int) -> SimpleNamespace:
        if handle == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(total=97887 * MIB, used=4 * MIB)

    facts = read_nvml(make_library(DeviceGetMemoryInfo=memory))
    assert (facts.error, facts.gpus, facts.driver_version) == ("GpuIsLost", (), "580.105.08")
    lost = read_nvml(make_library(DeviceGetMigMode=refuse(pynvml.NVML_ERROR_GPU_IS_LOST)))
    assert lost.error == "GpuIsLost"


def test_what_a_card_does_not_support_is_unknown_and_no_error() -> None:
    library = make_library(
        DeviceGetCudaComputeCapability=UNSUPPORTED,
        DeviceGetTotalEccErrors=UNSUPPORTED,
        DeviceGetCurrentClocksThrottleReasons=FORBIDDEN,
        DeviceGetComputeRunningProcesses_v3=UNSUPPORTED,
        DeviceGetNvLinkState=FORBIDDEN,
        DeviceGetP2PStatus=refuse(pynvml.NVML_ERROR_UNKNOWN),
        DeviceGetTopologyCommonAncestor=UNSUPPORTED,
        SystemGetCudaDriverVersion_v2=refuse(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
        DeviceGetPciInfo=UNSUPPORTED,
    )
    facts = read_nvml(library)
    assert facts.error == ""
    first = facts.gpus[0]
    assert (first.capability, first.ecc_errors, first.throttled_by) == (None, None, None)
    assert (first.processes, first.n_nvlinks, facts.pairs[0].p2p) == (None, None, None)
    found = judged(make_facts(nvml=facts), TWO)
    unknown = {"gpu_architecture", "ecc", "throttling", "topology"}
    assert {check for check in unknown if found[check].status == "unknown"} == unknown
    # No process list: memory alone still tells.
    assert found["gpu_memory"].status == "ok"


def test_a_card_without_mig_is_whole_and_one_that_may_not_say_is_unknown() -> None:
    assert read_nvml(make_library(DeviceGetMigMode=UNSUPPORTED)).gpus[0].mig is False
    assert read_nvml(make_library(DeviceGetMigMode=FORBIDDEN)).gpus[0].mig is None
    assert read_nvml(make_library(DeviceGetMigMode=lambda handle: (1, 1))).gpus[0].mig is True


def test_old_libraries_answer_in_bytes() -> None:
    library = make_library(
        DeviceGetName=lambda handle: b"NVIDIA B200", SystemGetDriverVersion=lambda: b"580.1"
    )
    facts = read_nvml(library)
    assert (facts.gpus[0].name, facts.driver_version) == ("NVIDIA B200", "580.1")


def test_links_are_counted_up_to_the_first_that_the_card_has_not() -> None:
    def link(handle: int, number: int) -> object:
        if number >= 4:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return pynvml.NVML_FEATURE_ENABLED if number != 2 else pynvml.NVML_FEATURE_DISABLED

    assert read_nvml(make_library(DeviceGetNvLinkState=link)).gpus[0].n_nvlinks == 3


def test_what_slows_a_card_down_is_named_and_a_power_cap_is_not() -> None:
    slow = read_nvml(make_library(DeviceGetCurrentClocksThrottleReasons=lambda handle: 0x84))
    assert slow.gpus[0].throttled_by == ("power brake",)


def test_a_process_is_named_by_its_command_and_a_hidden_one_by_its_number() -> None:
    running = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=2**22 + 1)]
    library = make_library(DeviceGetComputeRunningProcesses_v3=lambda handle: running)
    ours, hidden = read_nvml(library).gpus[0].processes or ()
    assert "py" in ours.name
    assert (hidden.pid, hidden.name) == (2**22 + 1, "")


def test_xid_lines_are_found_in_a_kernels_log() -> None:
    log = (
        "[1.0] usb 1-1: new device\n"
        "[2.0] NVRM: Xid (PCI:0000:38:00): 79, pid='<unknown>', GPU has fallen off the bus.\n"
        "[3.0] NVRM: Xid (PCI:0000:16:00): 8, pid=7, name=python3, channel 0x00000008\n"
    )
    assert [(x.bus_id, x.code) for x in parse_xids(log)] == [("0000:38:00", 79), ("0000:16:00", 8)]
    assert read_xids([("sh", "-c", f"echo '{log.splitlines()[2]}'")]) == parse_xids(log)[1:]
    # A log that is not ours to read is not an empty one.
    assert read_xids([("sh", "-c", "exit 1"), ("no-such-program",)]) is None
    assert read_xids([("sh", "-c", "exit 1"), ("true",)]) == ()
