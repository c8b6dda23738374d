"""Boxes that nobody has at hand, and their judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.environment.box_facts import (
    BoxFacts,
    DiskFacts,
    GpuFacts,
    JitCacheFacts,
    ModelFacts,
    NvmlFacts,
    PairFacts,
    ProbeFacts,
    PythonFacts,
    StageFacts,
    ToolkitFacts,
)
from tasks.environment.checks import judge
from tasks.environment.compat import PINS, LaunchChoice
from tasks.environment.record import BoxProfile, Verdict

CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build"
CUDA = {
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-cccl": "13.0.85",
}
TOOLKIT_VERSIONS = {
    "nvcc": "13.0.88",
    "crt": "13.0.88",
    "nvvm": "13.0.88",
    "runtime": "13.0",
    "driver_api": "13.0",
}


def card(index: int, **changes: Any) -> GpuFacts:
    fields = {
        "index": index,
        "name": CARD,
        "capability": (12, 0),
        "memory_total_mib": 97887,
        "memory_used_mib": 4,
        "bus_id": f"00000000:{index:02X}:00.0",
    }
    return GpuFacts.model_validate(fields | changes)


def cards(**changes: Any) -> tuple[GpuFacts, ...]:
    return tuple(card(index, **changes) for index in range(8))


def make_nvml(**changes: Any) -> NvmlFacts:
    fields = {
        "driver_version": "580.105.08",
        "cuda_version": 13000,
        "gpus": cards(),
        "pairs": (PairFacts(first=0, second=1, level=30, p2p=True),),
    }
    return NvmlFacts.model_validate(fields | changes)


def make_python(**versions: str | None) -> PythonFacts:
    found: dict[str, str | None] = {**PINS["0.5.12"], **CUDA}
    found |= {name.replace("_", "-"): version for name, version in versions.items()}
    held = {name: version for name, version in found.items() if version is not None}
    return PythonFacts(
        python="/servers/bin/python", returncode=0, versions=held, site_packages="/servers/site"
    )


def make_toolkit(**changes: Any) -> ToolkitFacts:
    fields = {
        "home": "/cuda",
        "origin": "CUDA_HOME",
        "versions": TOOLKIT_VERSIONS,
        "cccl": {"cub": "3.0.1", "libcudacxx": "3.0.1", "thrust": "3.0.1"},
        "hash": "a1b2",
        "built_at": 1_000.0,
    }
    return ToolkitFacts.model_validate(fields | changes)


def make_probe(failed: str = "", stderr: str = "", **changes: Any) -> ProbeFacts:
    """A probe whose steps passed, up to the one that failed."""
    stages = []
    for name in ("preprocess", "compile", "host headers", "link"):
        code = int(name == failed)
        stages.append(StageFacts(name=name, argv=("nvcc",), returncode=code, stderr=stderr))
        if code:
            break
    return ProbeFacts.model_validate({"arch": "sm_120", "stages": stages} | changes)


def make_model(**changes: Any) -> ModelFacts:
    fields = {
        "path": "/model",
        "is_local": True,
        "weights_gib": 50.3,
        "architectures": ("Qwen3_5ForCausalLM",),
        "has_mtp": False,
    }
    return ModelFacts.model_validate(fields | changes)


def make_facts(**changes: Any) -> BoxFacts:
    fields = {
        "taken_ports": {},
        "spool": make_disk(),
        "n_open_files_soft": 65536,
        "n_open_files_hard": 65536,
        "shm_gib": 64.0,
        "missing_files": (),
        "server_python": make_python(),
        "nvml": make_nvml(),
        "kernel_module": OPEN_MODULE,
        "model": make_model(),
        "environ": {"CUDA_HOME": "/cuda"},
        "folders": {"/cuda": True, "/opt/rocm": False},
        "toolkit": make_toolkit(),
        "host_compiler": "/usr/bin/g++",
        "probe": make_probe(),
        "jit_cache": JitCacheFacts(path="/cache", n_objects=3, oldest=2_000.0),
        "kernel_archs": ("sm_90", "sm_120"),
    }
    return BoxFacts.model_validate(fields | changes)


def make_disk(**changes: Any) -> DiskFacts:
    fields = {
        "path": "/spool",
        "mountpoint": "/",
        "fs_type": "ext4",
        "free_gib": 100.0,
        "writable": True,
    }
    return DiskFacts.model_validate(fields | changes)


def make_profile(**changes: Any) -> BoxProfile:
    fields = {
        "ports": tuple(range(30000, 30008)),
        "needs_gpu": True,
        "gpus": tuple(range(8)),
        "kv_gib": 10.0,
        "spool_dir": Path("/spool"),
        "spool_gib": 10.0,
        "model_path": "/model",
        "server_python": "/servers/bin/python",
        "sglang_version": "0.5.12",
        "cuda_dir": Path("/home/cuda"),
        "repair_argv": ("draftmill", "validate", "run.yaml"),
        "launch": LaunchChoice(sglang_version="0.5.12", attention_backend="flashinfer"),
    }
    return BoxProfile.model_validate(fields | changes)


def judged(facts: BoxFacts, profile: BoxProfile | None = None) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judge(facts, profile or make_profile())}


def not_ok(facts: BoxFacts, profile: BoxProfile | None = None) -> dict[str, str]:
    found = judged(facts, profile)
    return {each.id: each.status for each in found.values() if each.status != "ok"}
