"""The checks of GPUs and driver: there, of the right kind, with room, and a driver that fits. Pure.

A process that holds a card is named and never ended: it may be somebody's training run.
"""

from __future__ import annotations

import re

from tasks.environment import compat, symptoms
from tasks.environment.box_facts import BoxFacts, GpuFacts, NvmlFacts
from tasks.environment.record import BoxProfile, Status, Verdict
from tasks.environment.verdicts import manual, verdict

_GIB = 1024
# What an idle card holds for itself: 4 MiB on a bare one, some hundreds under a display server.
_IDLE_MIB = 1024
_UNSEEN = "not looked at: NVML does not answer"


def judge_nvml(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether driver and library answer at all."""
    nvml = read_nvml_facts(facts)
    if not nvml.error:
        return verdict("nvml", "ok", f"driver {nvml.driver_version} answers")
    meaning, remedy = symptoms.NVML_MEANING[nvml.error]
    values = {"error": nvml.error, "kernel_module": facts.kernel_module}
    fix = manual(f"nvml_{nvml.error.lower()}", remedy)
    # An error without a name says only that nothing is known.
    status: Status = "unknown" if nvml.error == "NotSupported" else "fail"
    return verdict("nvml", status, meaning, fix=fix, values=values)


def judge_gpus(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether the GPUs asked for are there, and are of one kind."""
    nvml = read_nvml_facts(facts)
    if nvml.error:
        return verdict("gpus", "unknown", _UNSEEN)
    found = {gpu.index for gpu in nvml.gpus}
    missing = sorted(set(profile.gpus) - found)
    if missing or not found:
        summary = f"GPUs {missing} are asked for, {len(found)} are there"
        fix = manual("fewer_servers", "Set serving.n_servers and serving.gpus to what is there.")
        return verdict("gpus", "fail", summary, fix=fix)
    kinds = {gpu.name for gpu in used_gpus(facts, profile)}
    if len(kinds) > 1:
        return verdict("gpus", "warn", f"the GPUs differ: {', '.join(sorted(kinds))}")
    return verdict("gpus", "ok", f"{len(profile.gpus)} x {', '.join(kinds)}")


def judge_architecture(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the cards' compute capability against what the configuration was made for."""
    check = "gpu_architecture"
    if read_nvml_facts(facts).error:
        return verdict(check, "unknown", _UNSEEN)
    capabilities = {gpu.capability for gpu in used_gpus(facts, profile)}
    if not capabilities or None in capabilities:
        return verdict(check, "unknown", "a card does not tell its compute capability")
    named = ", ".join(sorted(name_arch(each) for each in capabilities if each))
    least = min(each for each in capabilities if each)
    if least < compat.LEAST_CAPABILITY:
        fix = manual("newer_cards", "Use cards of SM80 or newer, or attach to other servers.")
        summary = f"{named}: sglang's kernels begin with {name_arch(compat.LEAST_CAPABILITY)}"
        return verdict(check, "fail", summary, fix=fix)
    if profile.capability is not None and capabilities != {profile.capability}:
        fix = manual("other_profile", "Take the profile of this card, or tune anew on it.")
        summary = f"{named}; the configuration is made for {name_arch(profile.capability)}"
        return verdict(check, "warn", summary, fix=fix)
    return verdict(check, "ok", named)


def judge_memory(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the free memory of each card against weights and KV cache.

    Memory counts, not the list of processes, which is empty in a container.
    """
    check = "gpu_memory"
    if read_nvml_facts(facts).error:
        return verdict(check, "unknown", _UNSEEN)
    cards = used_gpus(facts, profile)
    needed = _needed_mib(facts, profile)
    small = [gpu for gpu in cards if needed is not None and gpu.memory_total_mib < needed]
    if small and needed is not None:
        summary = (
            f"GPU {small[0].index} has {small[0].memory_total_mib / _GIB:.1f} GiB, weights and KV "
            f"cache need {needed / _GIB:.1f}"
        )
        what = "Take a quantised model or larger cards, or split it: serving.tp_size."
        return verdict(check, "fail", summary, fix=manual("larger_cards", what))
    busy = [gpu for gpu in cards if gpu.memory_used_mib > _IDLE_MIB and not _is_ours(gpu, profile)]
    values = {str(gpu.index): str(gpu.memory_used_mib) for gpu in cards}
    if busy:
        listed = ", ".join(_describe_busy(gpu, profile) for gpu in busy)
        room = min(gpu.memory_total_mib - gpu.memory_used_mib for gpu in busy)
        status: Status = "warn" if needed is not None and room >= needed else "fail"
        summary = listed
        if needed is not None:
            summary += f"; {room / _GIB:.1f} GiB are left, {needed / _GIB:.1f} are needed"
        what = "End what runs there yourself, or wait: memory is freed late."
        fix = manual("free_gpus", what)
        return verdict(check, status, summary, fix=fix, values=values)
    if profile.own_ports and any(gpu.memory_used_mib > _IDLE_MIB for gpu in cards):
        return verdict(check, "ok", "held by our own living fleet", values=values)
    if needed is None:
        return verdict(
            check, "ok", "the GPUs are empty; what the model needs is not known", values=values
        )
    return verdict(
        check, "ok", f"the GPUs are empty; {needed / _GIB:.1f} GiB are needed", values=values
    )


def judge_driver(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the driver against the CUDA runtime of the servers."""
    nvml = read_nvml_facts(facts)
    driver, runtime = nvml.driver_version, _runtime_version(facts)
    if not driver or runtime is None:
        missing = "the driver's version" if not driver else "the CUDA runtime of the servers"
        return verdict("driver", "unknown", f"not judged: {missing} is not known")
    cuda_major = int(runtime.split(".", 1)[0])
    least = compat.driver_minimum(cuda_major)
    values = {"driver": driver, "cuda_runtime": runtime}
    if least is None:
        summary = f"no minimum is known for CUDA {runtime}"
        return verdict("driver", "unknown", summary, values=values)
    too_old = int(driver.split(".", 1)[0]) < least
    if too_old or (nvml.cuda_version is not None and nvml.cuda_version // 1000 < cuda_major):
        fix = manual("upgrade_driver", f"Install driver {least} or newer, then reboot.")
        summary = f"driver {driver} is too old for CUDA {runtime}, which needs {least}"
        return verdict("driver", "fail", summary, fix=fix, values=values)
    return verdict("driver", "ok", f"driver {driver} goes with CUDA {runtime}", values=values)


def judge_module(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the kernel module: the version of the library, and the open flavour where needed."""
    module, check = facts.kernel_module, "kernel_module"
    nvml = read_nvml_facts(facts)
    if not module:
        return verdict(check, "unknown", "the kernel module says no version")
    version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", module + " ")
    values = {"module": module, "library": nvml.driver_version}
    if version and nvml.driver_version and version[1] != nvml.driver_version:
        fix = manual("reboot", symptoms.NVML_MEANING["LibRmVersionMismatch"][1])
        summary = f"the kernel module is {version[1]}, the driver's library {nvml.driver_version}"
        return verdict(check, "fail", summary, fix=fix, values=values)
    capabilities = [gpu.capability for gpu in nvml.gpus if gpu.capability is not None]
    if any(map(compat.needs_open_module, capabilities)) and "Open Kernel Module" not in module:
        fix = manual("open_module", "Install the driver's -open flavour, then reboot.")
        summary = "this GPU runs only with the open kernel module, the proprietary one is loaded"
        return verdict(check, "fail", summary, fix=fix, values=values)
    return verdict(check, "ok", module, values=values)


def read_nvml_facts(facts: BoxFacts) -> NvmlFacts:
    """Give what NVML told; not asked counts as not there."""
    return facts.nvml or NvmlFacts(error="LibraryNotFound")


def used_gpus(facts: BoxFacts, profile: BoxProfile) -> list[GpuFacts]:
    """Give the cards that the run will use."""
    return [gpu for gpu in read_nvml_facts(facts).gpus if gpu.index in profile.gpus]


def name_arch(capability: tuple[int, int]) -> str:
    """Name a compute capability as sglang and nvcc do: SM120."""
    return f"SM{capability[0]}{capability[1]}"


def _needed_mib(facts: BoxFacts, profile: BoxProfile) -> float | None:
    weights = profile.weights_gib
    if weights is None and facts.model is not None:
        weights = facts.model.weights_gib
    if weights is None:
        return None
    n_cards = profile.launch.tp_size if profile.launch else 1
    return (weights / n_cards + profile.kv_gib) * _GIB


def _is_ours(gpu: GpuFacts, profile: BoxProfile) -> bool:
    if not profile.own_ports:
        return False
    # A container shows no processes: then a living fleet of our own is the likeliest holder.
    return all(process.pid in profile.own_pids for process in gpu.processes or ())


def _describe_busy(gpu: GpuFacts, profile: BoxProfile) -> str:
    holders = [process for process in gpu.processes or () if process.pid not in profile.own_pids]
    named = ", ".join(f"pid {p.pid} {p.name}".rstrip() for p in holders)
    return f"GPU {gpu.index} holds {gpu.memory_used_mib} MiB" + (f" ({named})" if named else "")


def _runtime_version(facts: BoxFacts) -> str | None:
    if facts.server_python is not None:
        runtime = facts.server_python.versions.get(compat.CUDA_DISTRIBUTIONS["runtime"])
        if runtime is not None:
            return runtime
    return facts.toolkit.versions.get("runtime") if facts.toolkit else None
