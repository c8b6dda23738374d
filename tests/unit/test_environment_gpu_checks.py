"""Judgements on GPUs, driver and CUDA packages."""

from __future__ import annotations

import pytest

from tasks.environment.compat import NVML_MEANING, LaunchChoice
from tasks.environment.record import NvmlFacts
from tests.support.boxes import (
    OPEN_MODULE,
    card,
    judged,
    make_facts,
    make_nvml,
    make_profile,
    make_python,
)


@pytest.mark.parametrize("error", sorted(NVML_MEANING))
def test_each_nvml_error_has_a_meaning_and_a_remedy_of_its_own(error: str) -> None:
    found = judged(make_facts(nvml=NvmlFacts(error=error)))
    assert found["nvml"].status == "fail"
    assert found["nvml"].summary == NVML_MEANING[error][0]
    assert found["nvml"].fix is not None
    assert found["nvml"].fix.what == NVML_MEANING[error][1]
    # What cannot be known is not called sound.
    assert found["gpus"].status == found["gpu_memory"].status == "unknown"


def test_a_card_that_is_not_there_or_not_empty_fails() -> None:
    two = make_facts(nvml=make_nvml(gpus=(card(0), card(1))))
    assert "[2, 3, 4, 5, 6, 7] are asked for, 2 are there" in judged(two)["gpus"].summary
    cards = [card(index) for index in range(8)]
    # In a container the process list is empty: memory alone tells.
    cards[3] = card(3, memory_used_mib=41236)
    cards[5] = card(5, memory_used_mib=41236, pids=(918273,))
    found = judged(make_facts(nvml=make_nvml(gpus=tuple(cards))))["gpu_memory"]
    assert found.status == "fail"
    assert found.summary == "GPU 3 holds 41236 MiB, GPU 5 holds 41236 MiB (pid 918273)"
    unused = make_profile(gpus=(0, 1))
    assert (
        judged(make_facts(nvml=make_nvml(gpus=tuple(cards))), unused)["gpu_memory"].status == "ok"
    )
    ours = make_profile(own_ports=(30000,))
    found = judged(make_facts(nvml=make_nvml(gpus=tuple(cards))), ours)["gpu_memory"]
    assert found.status == "skip"


def test_the_driver_must_be_new_enough_for_the_runtime() -> None:
    old = make_facts(nvml=make_nvml(driver_version="570.86"), kernel_module="")
    found = judged(old)["driver"]
    assert found.status == "fail"
    assert "570.86 is too old for CUDA 13.0.96, which needs 580" in found.summary
    twelve = make_python(nvidia_cuda_runtime="12.8.90")
    assert judged(make_facts(nvml=old.nvml, server_python=twelve))["driver"].status == "ok"
    unknown = make_python(nvidia_cuda_runtime=None)
    assert judged(make_facts(server_python=unknown))["driver"].status == "unknown"


def test_blackwell_needs_the_open_module_of_the_drivers_own_version() -> None:
    closed = OPEN_MODULE.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")
    assert judged(make_facts(kernel_module=closed))["kernel_module"].status == "fail"
    hopper = make_nvml(gpus=tuple(card(index, capability=(9, 0)) for index in range(8)))
    assert judged(make_facts(kernel_module=closed, nvml=hopper))["kernel_module"].status == "ok"
    newer = make_facts(nvml=make_nvml(driver_version="580.126"))
    found = judged(newer)["kernel_module"]
    assert found.status == "fail"
    assert "580.105.08" in found.summary
    assert found.fix is not None
    assert "Reboot" in found.fix.what


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"nvidia_nvvm": "13.5.37", "nvidia_cuda_crt": "13.5.37"}, "crt 13.5, nvcc 13.0, nvvm"),
        ({"nvidia_cuda_nvcc": "13.2.86"}, "nvcc 13.2"),
        ({"nvidia_cuda_cccl": None}, "missing beside nvcc: cccl"),
    ],
)
def test_cuda_wheels_of_different_versions_fail_although_pip_is_content(
    versions: dict[str, str | None], message: str
) -> None:
    found = judged(make_facts(server_python=make_python(**versions)))["cuda_wheels"]
    assert found.status == "fail"
    assert message in found.summary
    assert found.fix is not None
    assert found.fix.argv[-1] == "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2"


def test_cuda_wheels_without_a_compiler_are_not_judged() -> None:
    found = judged(make_facts(server_python=make_python(nvidia_cuda_nvcc=None)))["cuda_wheels"]
    assert found.status == "skip"


@pytest.mark.parametrize(
    ("home", "exists", "status"),
    [
        (None, False, "ok"),
        ("/usr/local/cuda", True, "ok"),
        ("/usr/local/cuda", False, "fail"),
        (":/usr/local/cuda-12.8", True, "fail"),
    ],
)
def test_cuda_home_is_one_folder(home: str | None, exists: bool, status: str) -> None:
    facts = make_facts(cuda_home=home, cuda_home_exists=exists)
    assert judged(facts)["cuda_home"].status == status


def test_little_shared_memory_is_a_warning() -> None:
    found = judged(make_facts(shm_gib=0.0625))["shared_memory"]
    assert found.status == "warn"
    assert found.fix is not None
    assert "--shm-size=8g" in found.fix.what


def test_the_launch_is_judged_with_the_card_that_was_found() -> None:
    profile = make_profile(launch=LaunchChoice(sglang_version="0.5.12", attention_backend="fa4"))
    found = judged(make_facts(), profile)["launch"]
    assert found.status == "fail"
    assert "fa4 has no kernels for SM120" in found.summary
    blind = make_facts(nvml=NvmlFacts(error="LibraryNotFound"))
    assert "the card is not known" in judged(blind, profile)["launch"].summary
