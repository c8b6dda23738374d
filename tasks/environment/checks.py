"""Facts to verdicts: what stops a run, what may hurt it, and what mends it. Pure.

Enters: BoxFacts and the BoxProfile they were read for. Leaves: one Verdict a check, always the same
checks in the same order, `skip` where one does not apply. It exists so that each judgement can be
tested on boxes that nobody has at hand. Each subject has its own module: *_checks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tasks.environment import card_checks, cuda_checks, gpu_checks, host_checks, launch_checks
from tasks.environment.box_facts import BoxFacts
from tasks.environment.python_checks import judge_server_python
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.verdicts import verdict

_Check = Callable[[BoxFacts, BoxProfile], Verdict]
_Checks = Callable[[BoxFacts, BoxProfile], tuple[Verdict, ...]]
# Ids of the verdicts -> the judgement that gives them.
_GPU_CHECKS: tuple[tuple[tuple[str, ...], _Check | _Checks], ...] = (
    (("nvml",), gpu_checks.judge_nvml),
    (("gpus",), gpu_checks.judge_gpus),
    (("gpu_architecture",), gpu_checks.judge_architecture),
    (("gpu_memory",), gpu_checks.judge_memory),
    (("driver",), gpu_checks.judge_driver),
    (("kernel_module",), gpu_checks.judge_module),
    (("mig",), card_checks.judge_mig),
    (("ecc",), card_checks.judge_ecc),
    (("xid",), card_checks.judge_xid),
    (("throttling",), card_checks.judge_throttling),
    (("topology",), card_checks.judge_topology),
    (("shared_memory",), host_checks.judge_shared_memory),
    (("visible_devices",), cuda_checks.judge_visible_devices),
    (("cuda_home",), cuda_checks.judge_cuda_home),
    (("rocm",), cuda_checks.judge_rocm),
    (("cuda_coherence",), cuda_checks.judge_coherence),
    (("nvcc_for_card",), cuda_checks.judge_nvcc_for_card),
    (("nv_target", "host_cccl", "cccl_coherence"), cuda_checks.judge_cccl),
    (("cuda_headers",), cuda_checks.judge_headers),
    (("libcudart", "libcuda"), cuda_checks.judge_libraries),
    (("host_compiler", "cuda_probe"), cuda_checks.judge_probe),
    (("jit_cache",), cuda_checks.judge_jit_cache),
    (("kernel_archs",), cuda_checks.judge_kernel_archs),
    (("attention_backend",), launch_checks.judge_attention),
    (("mamba",), launch_checks.judge_mamba),
    (("mtp",), launch_checks.judge_mtp),
    (("model_files",), launch_checks.judge_model),
    (("model_disk",), launch_checks.judge_model_disk),
)


def judge(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge a box for a profile."""
    return (
        *host_checks.judge_host(facts, profile),
        *judge_server_python(facts, profile),
        *_judge_gpus(facts, profile),
    )


def exit_code(statuses: Collection[str]) -> int:
    """Sum the statuses of verdicts up as an exit code: 0 all well, 2 warnings, 1 failures."""
    if "fail" in statuses:
        return 1
    return 2 if "warn" in statuses else 0


def describe(verdict: Verdict) -> str:
    """Return a verdict as one line, its fix included."""
    line = f"{verdict.id}: {verdict.summary}"
    if verdict.fix is None:
        return line
    command = f" `{' '.join(verdict.fix.argv)}`" if verdict.fix.argv else ""
    return f"{line} Fix: {verdict.fix.what}{command}"


def _judge_gpus(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    found: list[Verdict] = []
    for ids, check in _GPU_CHECKS:
        if not profile.needs_gpu:
            found += [verdict(each, "skip", profile.no_gpu_reason) for each in ids]
            continue
        judged = check(facts, profile)
        found += judged if isinstance(judged, tuple) else (judged,)
    return tuple(found)
