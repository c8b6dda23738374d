"""Public reports of broken environments: from the symptom to the check and the remedy.

Each is met as a message far from its cause, or as a fact of the box, or as both.
"""

from __future__ import annotations

from typing import Any

import pytest

from tasks.environment.box_facts import GpuProcess, NvmlFacts, PairFacts, XidFacts
from tasks.environment.compat import LaunchChoice
from tasks.environment.symptoms import diagnose
from tests.support.boxes import (
    OPEN_MODULE,
    TOOLKIT_VERSIONS,
    cards,
    judged,
    make_facts,
    make_nvml,
    make_profile,
    make_toolkit,
)

CLOSED_MODULE = OPEN_MODULE.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
NVCC_13_2 = TOOLKIT_VERSIONS | {"nvcc": "13.2.86"}
ORPHAN = (GpuProcess(pid=31337, name="sglang::scheduler"),)


def launch(**choice: Any) -> dict[str, Any]:
    return {"launch": LaunchChoice(sglang_version="0.5.12", **choice)}


# Report, message ("": it is met without one), facts, profile, check, words of the remedy.
Report = tuple[str, str, dict[str, Any], dict[str, Any], str, str]
REPORTS: list[Report] = [
    (
        "flashinfer#5064",
        "/usr/bin/ld: cannot find -lcudart: No such file or directory",
        {"toolkit": make_toolkit(has_cudart_link=False)},
        {},
        "libcudart",
        "lib64",
    ),
    (
        "edutelligence#687",
        '#error "CUDA compiler and CUDA toolkit headers are incompatible"',
        {"toolkit": make_toolkit(versions=NVCC_13_2)},
        {},
        "cuda_coherence",
        "one version",
    ),
    (
        "flashinfer#4410",
        "fatal error: curand_kernel.h: No such file or directory",
        {"toolkit": make_toolkit(missing_headers=("curand_kernel.h",))},
        {},
        "cuda_headers",
        "unites the headers",
    ),
    (
        "vllm#36077",
        "RuntimeError: [Errno 2] No such file or directory: ':/usr/local/cuda-12.8/bin/nvcc'",
        {"environ": {"CUDA_HOME": ":/usr/local/cuda-12.8"}},
        {},
        "cuda_home",
        "one toolkit",
    ),
    (
        "sglang#15342",
        "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90",
        {},
        launch(attention_backend="fa3"),
        "attention_backend",
        "flashinfer",
    ),
    (
        "sglang#12178",
        "FlashAttention v4 has no kernels for this card",
        {},
        launch(attention_backend="fa4"),
        "attention_backend",
        "flashinfer",
    ),
    (
        "sglang#7249",
        "CUDA error: no kernel image is available for execution on the device",
        {"kernel_archs": ("sm_80", "sm_90")},
        {},
        "kernel_archs",
        "pinned",
    ),
    (
        "sglang#38515",
        "RuntimeError: no kernel image is available for execution on the device",
        {"kernel_archs": ("sm_100a",)},
        {},
        "kernel_archs",
        "pinned",
    ),
    (
        "FunASR#2973",
        "The NVIDIA driver on your system is too old (found version 12080)",
        {"nvml": make_nvml(driver_version="570.86", cuda_version=12080), "kernel_module": ""},
        {},
        "driver",
        "580",
    ),
    (
        "nvidia-container-toolkit#394",
        "Failed to initialize NVML: Driver/library version mismatch",
        {"nvml": NvmlFacts(error="LibRmVersionMismatch")},
        {},
        "nvml",
        "Reboot",
    ),
    (
        "nvidia-container-toolkit#394, seen from the module",
        "",
        {"nvml": make_nvml(driver_version="580.126")},
        {},
        "kernel_module",
        "Reboot",
    ),
    (
        "nvidia-container-toolkit#48",
        "Failed to initialize NVML: Unknown Error",
        {"nvml": NvmlFacts(error="Unknown")},
        {},
        "nvml",
        "restart",
    ),
    (
        "amazon-eks-ami#2769",
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        {"kernel_module": CLOSED_MODULE},
        {},
        "kernel_module",
        "-open",
    ),
    (
        "nccl#1999",
        "Watchdog caught collective operation timeout: all_reduce timed out",
        {"nvml": make_nvml(pairs=(PairFacts(first=0, second=1, level=40, p2p=False),))},
        launch(tp_size=2),
        "topology",
        "NCCL_P2P_DISABLE=1",
    ),
    (
        "sglang#5096",
        "Error while creating shared memory segment /dev/shm/nccl: No space left on device",
        {"shm_gib": 0.0625},
        {},
        "shared_memory",
        "--shm-size",
    ),
    (
        "dynamo#1889",
        "torch.OutOfMemoryError: CUDA out of memory",
        {"nvml": make_nvml(gpus=cards(memory_used_mib=84000, processes=ORPHAN))},
        {},
        "gpu_memory",
        "wait",
    ),
    (
        "open-gpu-kernel-modules#1159",
        "NVRM: Xid (PCI:0000:00:00): 8, pid=48694, name=python3, channel 0x00000008",
        {"xids": (XidFacts(bus_id="0000:00:00", code=8, line="NVRM: Xid ...: 8"),)},
        {},
        "xid",
        "more of them",
    ),
]


@pytest.mark.parametrize("report", REPORTS, ids=[report[0] for report in REPORTS])
def test_a_public_report_is_found_by_its_check_with_the_remedy(report: Report) -> None:
    _, message, facts, profile, check, remedy = report
    found = judged(make_facts(**facts), make_profile(**profile))[check]
    assert found.status in ("warn", "fail"), found.summary
    assert found.fix is not None
    assert remedy in found.fix.what
    if message:
        told = diagnose(message)
        assert told is not None
        assert told.check == check
        assert told.remedy


def test_every_check_of_the_table_of_messages_exists() -> None:
    known = set(judged(make_facts()))
    messages = [message for _, message, *_ in REPORTS if message]
    assert {told.check for told in map(diagnose, messages) if told} <= known


def test_a_message_that_nobody_knows_is_not_explained() -> None:
    assert diagnose("Segmentation fault (core dumped)") is None
