"""Each check has a box on which it passes, one on which it does not, one where it cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.environment.box_facts import (
    BoxFacts,
    JitCacheFacts,
    NvmlFacts,
    ProbeFacts,
    PythonFacts,
    SourceFacts,
    StoreFacts,
    XidFacts,
)
from tasks.environment.compat import LaunchChoice
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.surroundings_checks import judge_surroundings
from tests.support.boxes import (
    TOOLKIT_VERSIONS,
    cards,
    judged,
    make_disk,
    make_facts,
    make_model,
    make_nvml,
    make_probe,
    make_profile,
    make_python,
    make_toolkit,
)

BLIND: dict[str, Any] = {"nvml": NvmlFacts(error="Unknown")}
NO_TOOLKIT: dict[str, Any] = {"toolkit": None}
HANGS = PythonFacts(python="/p", returncode=None, error="timed out after 60 s")
RUNS_NOT = PythonFacts(python="/p", returncode=1, error="bad interpreter")
FA4 = LaunchChoice(sglang_version="0.5.12", attention_backend="fa4")
NO_BUFFER = LaunchChoice(sglang_version="0.5.12", n_draft_tokens=4)
PLAIN = LaunchChoice(sglang_version="0.5.12")
TP2 = LaunchChoice(sglang_version="0.5.12", tp_size=2)
XID_79 = XidFacts(bus_id="0000:00:00", code=79, line="NVRM: Xid (PCI:0000:00:00): 79")
MIXED = TOOLKIT_VERSIONS | {"nvvm": "13.2.78"}
OLD_NVCC = {part: version.replace("13.0", "12.8") for part, version in TOOLKIT_VERSIONS.items()}
CCCL_MIX = {"cub": "3.0.1", "libcudacxx": "3.3.2", "thrust": "3.0.1"}
HUB = {"path": "org/model", "is_local": False, "missing": ("config.json",)}


def on(profile: dict[str, Any] | None = None, **facts: Any) -> tuple[BoxFacts, BoxProfile]:
    return make_facts(**facts), make_profile(**(profile or {}))


# Check -> (status of the box that is not sound, that box, a box of which the check cannot tell).
CASES: dict[str, tuple[str, tuple[BoxFacts, BoxProfile], tuple[BoxFacts, BoxProfile]]] = {
    "ports": ("fail", on(taken_ports={30001: "pid 7 (nginx)"}), on(unread_ports=(30001,))),
    "spool_disk": (
        "fail",
        on(spool=make_disk(free_gib=1.0)),
        on(spool=make_disk(fs_type="unreadable", writable=False)),
    ),
    "spool_file_system": (
        "fail",
        on(spool=make_disk(fs_type="nfs4")),
        on(spool=make_disk(fs_type="unknown")),
    ),
    "open_files": ("fail", on(n_open_files_soft=256), on(n_open_files_soft=None)),
    "files": ("fail", on(missing_files=("/a",)), on(unread_files=("/b",))),
    "server_python": ("fail", on(server_python=RUNS_NOT), on(server_python=HANGS)),
    "server_packages": (
        "fail",
        on(server_python=make_python(sglang=None)),
        on(server_python=RUNS_NOT),
    ),
    "nvml": (
        "fail",
        on(nvml=NvmlFacts(error="LibRmVersionMismatch")),
        on(nvml=NvmlFacts(error="NotSupported")),
    ),
    "gpus": ("fail", on(nvml=make_nvml(gpus=cards()[:2])), on(**BLIND)),
    "gpu_architecture": (
        "fail",
        on(nvml=make_nvml(gpus=cards(capability=(7, 5)))),
        on(nvml=make_nvml(gpus=cards(capability=None))),
    ),
    "gpu_memory": ("fail", on(nvml=make_nvml(gpus=cards(memory_used_mib=41236))), on(**BLIND)),
    "driver": ("fail", on(nvml=make_nvml(driver_version="570.86")), on(**BLIND)),
    "kernel_module": (
        "fail",
        on(nvml=make_nvml(driver_version="580.126")),
        on(kernel_module=""),
    ),
    "mig": (
        "fail",
        on(nvml=make_nvml(gpus=cards(mig=True))),
        on(nvml=make_nvml(gpus=cards(mig=None))),
    ),
    "ecc": (
        "fail",
        on(nvml=make_nvml(gpus=cards(ecc_errors=2))),
        on(nvml=make_nvml(gpus=cards(ecc_errors=None))),
    ),
    "xid": ("fail", on(xids=(XID_79,)), on(xids=None)),
    "throttling": (
        "warn",
        on(nvml=make_nvml(gpus=cards(throttled_by=("power brake",)))),
        on(nvml=make_nvml(gpus=cards(throttled_by=None))),
    ),
    "topology": (
        "fail",
        on({"launch": TP2}),
        on(nvml=make_nvml(gpus=cards(n_nvlinks=None))),
    ),
    "shared_memory": ("warn", on(shm_gib=0.0625), on(shm_gib=None)),
    "visible_devices": (
        "warn",
        on(environ={"CUDA_VISIBLE_DEVICES": ""}),
        on(environ={"CUDA_VISIBLE_DEVICES": "GPU-000000a0"}),
    ),
    "cuda_home": (
        "fail",
        on(environ={"CUDA_HOME": ":/usr/local/cuda-12.8"}),
        on(environ={"CUDA_HOME": "/elsewhere"}),
    ),
    "rocm": ("fail", on(folders={"/cuda": True, "/opt/rocm": True}), on(folders={"/cuda": True})),
    "cuda_coherence": (
        "fail",
        on(toolkit=make_toolkit(versions=MIXED)),
        on(toolkit=make_toolkit(versions={})),
    ),
    "nvcc_for_card": ("fail", on(toolkit=make_toolkit(versions=OLD_NVCC)), on(**NO_TOOLKIT)),
    "nv_target": ("fail", on(toolkit=make_toolkit(has_nv_target=False)), on(**NO_TOOLKIT)),
    "host_cccl": ("fail", on(toolkit=make_toolkit(has_host_cccl=False)), on(**NO_TOOLKIT)),
    "cccl_coherence": (
        "fail",
        on(toolkit=make_toolkit(cccl=CCCL_MIX)),
        on(toolkit=make_toolkit(cccl={})),
    ),
    "cuda_headers": (
        "fail",
        on(toolkit=make_toolkit(missing_headers=("curand_kernel.h",))),
        on(**NO_TOOLKIT),
    ),
    "libcudart": ("fail", on(toolkit=make_toolkit(has_cudart_link=False)), on(**NO_TOOLKIT)),
    "libcuda": ("fail", on(toolkit=make_toolkit(libcuda="empty")), on(**NO_TOOLKIT)),
    "host_compiler": ("fail", on(host_compiler=None), on(host_compiler="")),
    "cuda_probe": (
        "fail",
        on(probe=make_probe("compile", "ptxas fatal: Unsupported .version 9.2")),
        on(probe=ProbeFacts(arch="sm_120", skipped="there is no g++")),
    ),
    "jit_cache": (
        "warn",
        on(jit_cache=JitCacheFacts(path="/cache", n_objects=3, oldest=10.0)),
        on(**NO_TOOLKIT),
    ),
    "kernel_archs": ("fail", on(kernel_archs=("sm_90",)), on(kernel_archs=None)),
    "attention_backend": ("fail", on({"launch": FA4}), on(**BLIND)),
    "mamba": (
        "fail",
        on({"launch": NO_BUFFER}),
        on({"launch": PLAIN}, model=make_model(architectures=())),
    ),
    "mtp": ("warn", on(model=make_model(has_mtp=True)), on(model=make_model(has_mtp=None))),
    "model_files": (
        "fail",
        on(model=make_model(missing=("model-00002-of-00002.safetensors",))),
        on(model=make_model(error="Permission denied")),
    ),
    "model_disk": (
        "fail",
        on({"weights_gib": 50.3}, model=make_model(**HUB, disk=make_disk(free_gib=20.0))),
        on(model=make_model(**HUB)),
    ),
}


def test_no_check_is_without_its_three_cases() -> None:
    assert set(CASES) == set(judged(make_facts()))


def test_the_box_of_eight_cards_is_sound() -> None:
    assert {v.id: v.status for v in judged(make_facts()).values()} == dict.fromkeys(CASES, "ok")


@pytest.mark.parametrize("check", CASES)
def test_a_box_that_is_not_sound_is_told_with_its_fix(check: str) -> None:
    status, box, _ = CASES[check]
    found = judged(*box)[check]
    assert found.status == status, found.summary
    assert found.fix is not None
    assert found.fix.what


@pytest.mark.parametrize("check", CASES)
def test_what_cannot_be_known_is_not_called_sound(check: str) -> None:
    found = judged(*CASES[check][2])[check]
    assert found.status == "unknown", found.summary


def beyond(
    store: StoreFacts | None = None, source: SourceFacts | None = None, **cache: Any
) -> dict[str, Verdict]:
    sources = [source] if source else []
    found = judge_surroundings(store, sources, cache.get("disk"), cache.get("needed"))
    return {each.id: each for each in found}


S3 = {"uri": "s3://bucket/run", "create_only": True}


@pytest.mark.parametrize(
    ("check", "sound", "faulty", "unknown"),
    [
        (
            "store.create_only",
            beyond(StoreFacts(**S3)),
            beyond(StoreFacts(uri="s3://b/r", error="the store overwrites")),
            beyond(StoreFacts(uri="s3://b/r")),
        ),
        (
            "clock",
            beyond(StoreFacts(**S3, skew_seconds=0.4)),
            beyond(StoreFacts(**S3, skew_seconds=-900.0)),
            beyond(StoreFacts(**S3)),
        ),
        (
            "source.math",
            beyond(source=SourceFacts(key="math", dataset="org/math", revision="0" * 40)),
            beyond(source=SourceFacts(key="math", error="401: the token is refused")),
            beyond(source=SourceFacts(key="math", error="reset", is_user_fault=False)),
        ),
        (
            "cache_disk",
            beyond(disk=make_disk(), needed=10.0),
            beyond(disk=make_disk(free_gib=2.0), needed=10.0),
            beyond(needed=10.0),
        ),
    ],
)
def test_what_lies_beyond_the_box_is_judged_too(
    check: str, sound: dict[str, Verdict], faulty: dict[str, Verdict], unknown: dict[str, Verdict]
) -> None:
    statuses = [found[check].status for found in (sound, faulty, unknown)]
    assert statuses == ["ok", "fail", "unknown"]
    assert faulty[check].fix is not None


def test_a_store_in_a_folder_and_local_sources_need_neither_clock_nor_cache() -> None:
    folder = beyond(StoreFacts(uri="file:///store/run", create_only=True), needed=0.0)
    assert folder["clock"].status == folder["cache_disk"].status == "skip"
    assert beyond()["store.create_only"].status == "skip"
    slow = beyond(StoreFacts(uri="s3://b/r", create_only=True, skew_seconds=30.0))["clock"]
    assert (slow.status, slow.summary) == ("warn", "our clock is 30 s ahead of the store's")


def test_a_repair_is_reversible_and_says_how_it_is_taken_back() -> None:
    fix = judged(make_facts(toolkit=make_toolkit(has_nv_target=False)))["nv_target"].fix
    assert fix is not None
    assert (fix.kind, fix.reversible) == ("compose", True)
    assert fix.argv == ("draftmill", "validate", "run.yaml", "--apply")
    assert fix.undo == ("draftmill", "validate", "run.yaml", "--undo")
    assert make_profile().cuda_dir == Path("/home/cuda")
