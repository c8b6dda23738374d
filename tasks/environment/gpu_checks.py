"""The checks of GPUs, driver and CUDA packages. Pure; each is `skip` where no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Callable

from tasks.environment import compat
from tasks.environment.record import BoxFacts, BoxProfile, Evidence, Fix, NvmlFacts, Verdict

# What an idle card holds for itself: 4 MiB on a bare one, some hundreds under a display server.
_IDLE_MIB = 1024
_SHM_GIB_A_GPU = 1.0


def judge_gpus(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge the GPUs, the driver and the CUDA packages."""
    checks: dict[str, Callable[[BoxFacts, BoxProfile], Verdict]] = {
        "nvml": _judge_nvml,
        "gpus": _judge_presence,
        "gpu_memory": _judge_memory,
        "driver": _judge_driver,
        "kernel_module": _judge_module,
        "cuda_wheels": _judge_wheels,
        "cuda_home": _judge_cuda_home,
        "shared_memory": _judge_shm,
        "launch": _judge_launch,
    }
    if not profile.needs_gpu:
        return tuple(_verdict(check, "skip", profile.no_gpu_reason) for check in checks)
    return tuple(check(facts, profile) for check in checks.values())


def _verdict(
    check: str,
    status: str,
    summary: str,
    *,
    fix: Fix | None = None,
    values: dict[str, str] | None = None,
) -> Verdict:
    return Verdict.model_validate(
        {
            "id": check,
            "status": status,
            "severity": "error",
            "summary": summary,
            "evidence": Evidence(values=values or {}),
            "fix": fix,
        }
    )


def _manual(fix_id: str, what: str) -> Fix:
    return Fix(id=fix_id, kind="manual", what=what)


def _nvml(facts: BoxFacts) -> NvmlFacts:
    return facts.nvml or NvmlFacts(error="LibraryNotFound")


def _judge_nvml(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    error = _nvml(facts).error
    if not error:
        return _verdict("nvml", "ok", f"driver {_nvml(facts).driver_version} answers")
    meaning, remedy = compat.NVML_MEANING[error]
    values = {"error": error, "kernel_module": facts.kernel_module}
    fix = _manual(f"nvml_{error.lower()}", remedy)
    return _verdict("nvml", "fail", meaning, fix=fix, values=values)


def _judge_presence(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    nvml = _nvml(facts)
    if nvml.error:
        return _verdict("gpus", "unknown", "not looked at: NVML does not answer")
    found = {gpu.index for gpu in nvml.gpus}
    missing = sorted(set(profile.gpus) - found)
    if missing:
        return _verdict(
            "gpus",
            "fail",
            f"GPUs {missing} are asked for, {len(found)} are there",
            fix=_manual(
                "fewer_servers", "Set serving.n_servers and serving.gpus to what is there."
            ),
        )
    kinds = {gpu.name for gpu in nvml.gpus if gpu.index in profile.gpus}
    if len(kinds) > 1:
        return _verdict("gpus", "warn", f"the GPUs differ: {', '.join(sorted(kinds))}")
    return _verdict("gpus", "ok", f"{len(profile.gpus)} x {', '.join(kinds)}")


def _judge_memory(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    nvml = _nvml(facts)
    if nvml.error:
        return _verdict("gpu_memory", "unknown", "not looked at: NVML does not answer")
    if profile.own_ports:
        return _verdict("gpu_memory", "skip", "our own fleet runs on the GPUs")
    # Memory counts, not the list of processes, which is empty in a container.
    busy = [
        gpu for gpu in nvml.gpus if gpu.index in profile.gpus and gpu.memory_used_mib > _IDLE_MIB
    ]
    if not busy:
        return _verdict("gpu_memory", "ok", "the GPUs are empty")
    listed = ", ".join(
        f"GPU {gpu.index} holds {gpu.memory_used_mib} MiB"
        + (f" (pid {', '.join(map(str, gpu.pids))})" if gpu.pids else "")
        for gpu in busy
    )
    return _verdict(
        "gpu_memory",
        "fail",
        listed,
        fix=_manual("free_gpus", "End what runs there, or wait: memory is freed late."),
        values={str(gpu.index): str(gpu.memory_used_mib) for gpu in busy},
    )


def _judge_driver(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    driver = _nvml(facts).driver_version
    runtime = _wheel_version(facts, "runtime")
    if not driver or runtime is None:
        missing = "the driver's version" if not driver else "the CUDA runtime of the servers"
        return _verdict("driver", "unknown", f"not judged: {missing} is not known")
    least = compat.driver_minimum(int(runtime.split(".", 1)[0]))
    values = {"driver": driver, "cuda_runtime": runtime}
    if least is None:
        return _verdict(
            "driver", "unknown", f"no minimum is known for CUDA {runtime}", values=values
        )
    if int(driver.split(".", 1)[0]) < least:
        fix = _manual("upgrade_driver", f"Install driver {least} or newer, then reboot.")
        summary = f"driver {driver} is too old for CUDA {runtime}, which needs {least}"
        return _verdict("driver", "fail", summary, fix=fix, values=values)
    return _verdict("driver", "ok", f"driver {driver} goes with CUDA {runtime}", values=values)


def _judge_module(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    module = facts.kernel_module
    capabilities = [gpu.capability for gpu in _nvml(facts).gpus if gpu.capability is not None]
    if not module:
        return _verdict("kernel_module", "unknown", "the kernel module says no version")
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", module + " ")
    driver = _nvml(facts).driver_version
    if version and driver and version[1] != driver:
        return _verdict(
            "kernel_module",
            "fail",
            f"the kernel module is {version[1]}, the driver's library {driver}",
            fix=_manual("reboot", compat.NVML_MEANING["LibRmVersionMismatch"][1]),
        )
    if any(map(compat.needs_open_module, capabilities)) and "Open Kernel Module" not in module:
        return _verdict(
            "kernel_module",
            "fail",
            "this GPU runs only with the open kernel module, and the proprietary one is loaded",
            fix=_manual("open_module", "Install the driver's -open flavour, then reboot."),
        )
    return _verdict("kernel_module", "ok", module)


def _judge_wheels(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Hold the parts of the pip CUDA toolkit against each other: pip itself never does."""
    versions = {part: _wheel_version(facts, part) for part in compat.CUDA_DISTRIBUTIONS}
    values = {part: version for part, version in versions.items() if version is not None}
    if versions["nvcc"] is None:
        return _verdict("cuda_wheels", "skip", "no nvcc among the servers' packages")
    assert facts.server_python is not None  # noqa: S101 - it told the versions
    series = {
        part: ".".join(version.split(".")[:2]) for part, version in values.items() if part != "cccl"
    }
    missing = sorted(set(versions) - set(values))
    if len(set(series.values())) == 1 and not missing:
        return _verdict("cuda_wheels", "ok", f"CUDA {series['nvcc']} throughout", values=values)
    python = facts.server_python.python
    pin = f"{compat.CUDA_PIN}=={compat.TOOLKIT.get(profile.sglang_version or '', series['nvcc'])}"
    fix = Fix(
        id="coherent_cuda_wheels",
        kind="pip",
        what="Bring all parts to one version:",
        argv=(python, "-m", "pip", "install", pin),
    )
    if missing:
        summary = f"missing beside nvcc: {', '.join(missing)} (kernels will not compile)"
    else:
        mixed = ", ".join(f"{part} {version}" for part, version in sorted(series.items()))
        summary = f"parts of different CUDA versions: {mixed}"
    return _verdict("cuda_wheels", "fail", summary, fix=fix, values=values)


def _judge_cuda_home(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    home = facts.cuda_home
    if home is None:
        return _verdict("cuda_home", "ok", "CUDA_HOME is not set")
    fix = Fix(
        id="correct_cuda_home",
        kind="env",
        what="Set CUDA_HOME to the folder of one toolkit, or unset it.",
    )
    if ":" in home:
        return _verdict("cuda_home", "fail", f"CUDA_HOME {home!r} is a list, not a folder", fix=fix)
    if not facts.cuda_home_exists:
        return _verdict("cuda_home", "fail", f"CUDA_HOME {home!r} does not exist", fix=fix)
    return _verdict("cuda_home", "ok", f"CUDA_HOME is {home}")


def _judge_shm(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    needed = _SHM_GIB_A_GPU * len(profile.gpus)
    if facts.shm_gib is None:
        return _verdict("shared_memory", "unknown", "the shared memory cannot be read")
    if facts.shm_gib < needed:
        fix = _manual(
            "larger_shm", f"Start the container with --shm-size={needed:g}g or --ipc=host."
        )
        summary = f"{facts.shm_gib:.2f} GiB of shared memory, {needed:g} are advised"
        return _verdict("shared_memory", "warn", summary, fix=fix)
    return _verdict("shared_memory", "ok", f"{facts.shm_gib:.1f} GiB of shared memory")


def _judge_launch(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    if profile.launch is None:
        return _verdict("launch", "skip", "no launch settings to judge")
    capabilities: set[tuple[int, int] | None] = {
        gpu.capability for gpu in _nvml(facts).gpus if gpu.index in profile.gpus and gpu.capability
    }
    found = {
        conflict.id: conflict
        for capability in (capabilities or {profile.launch.capability})
        for conflict in compat.find_conflicts(profile.launch.on_card(capability))
    }
    if not found:
        known = "" if capabilities else " (the card is not known)"
        return _verdict("launch", "ok", f"no conflict among the launch settings{known}")
    return _verdict(
        "launch",
        "fail",
        "; ".join(conflict.what for conflict in found.values()),
        fix=_manual("launch_settings", " ".join(each.remedy for each in found.values())),
    )


def _wheel_version(facts: BoxFacts, part: str) -> str | None:
    if facts.server_python is None:
        return None
    return facts.server_python.versions.get(compat.CUDA_DISTRIBUTIONS[part])
