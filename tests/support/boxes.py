"""Boxes that nobody has at hand, and their judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.environment.checks import judge
from tasks.environment.compat import PINS, LaunchChoice
from tasks.environment.record import (
    BoxFacts,
    BoxProfile,
    DiskFacts,
    GpuFacts,
    NvmlFacts,
    PythonFacts,
    Verdict,
)

CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build"
CUDA = {
    "nvidia-cuda-runtime": "13.0.96",
    "nvidia-cuda-nvcc": "13.0.88",
    "nvidia-cuda-crt": "13.0.88",
    "nvidia-nvvm": "13.0.88",
    "nvidia-cuda-cccl": "13.0.85",
}


def card(index: int, **changes: Any) -> GpuFacts:
    fields = {
        "index": index,
        "name": CARD,
        "capability": (12, 0),
        "memory_total_mib": 97887,
        "memory_used_mib": 4,
    }
    return GpuFacts.model_validate(fields | changes)


def make_nvml(**changes: Any) -> NvmlFacts:
    fields = {"driver_version": "580.105.08", "gpus": tuple(card(index) for index in range(8))}
    return NvmlFacts.model_validate(fields | changes)


def make_python(**versions: str | None) -> PythonFacts:
    found: dict[str, str | None] = {**PINS["0.5.12"], **CUDA}
    found |= {name.replace("_", "-"): version for name, version in versions.items()}
    held = {name: version for name, version in found.items() if version is not None}
    return PythonFacts(python="/servers/bin/python", returncode=0, versions=held)


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
        "spool_dir": Path("/spool"),
        "spool_gib": 10.0,
        "server_python": "/servers/bin/python",
        "sglang_version": "0.5.12",
        "launch": LaunchChoice(sglang_version="0.5.12", attention_backend="flashinfer"),
    }
    return BoxProfile.model_validate(fields | changes)


def judged(facts: BoxFacts, profile: BoxProfile | None = None) -> dict[str, Verdict]:
    return {verdict.id: verdict for verdict in judge(facts, profile or make_profile())}


def not_ok(facts: BoxFacts, profile: BoxProfile | None = None) -> dict[str, str]:
    found = judged(facts, profile)
    return {each.id: each.status for each in found.values() if each.status != "ok"}
