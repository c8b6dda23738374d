"""The checks of the CUDA toolkit that kernels are compiled with at run time. Pure.

flashinfer and tvm_ffi compile kernels while the server starts; pip is content with toolkits that
cannot compile one. Each check here is one way in which that fails, and the functional probe says
whether all of it together works. Facts are of the toolkit that the server would find.
"""

from __future__ import annotations

import re

from tasks.environment import compat, symptoms
from tasks.environment.box_facts import BoxFacts
from tasks.environment.gpu_checks import name_arch, used_gpus
from tasks.environment.record import BoxProfile, Fix, Verdict
from tasks.environment.verdicts import compose, manual, verdict

_IS_CAUSE = re.compile(r"error|fatal|cannot find|undefined", re.IGNORECASE)
_NO_TOOLKIT = "not looked at: no CUDA toolkit was found"


def judge_visible_devices(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge CUDA_VISIBLE_DEVICES: each launch sets its own, so that one here is worth a warning."""
    check, value = "visible_devices", facts.environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return verdict(check, "ok", "CUDA_VISIBLE_DEVICES is not set; each server gets its own")
    fix = Fix(
        id="unset_visible_devices",
        kind="env",
        what="Unset CUDA_VISIBLE_DEVICES, or name its cards in serving.gpus.",
    )
    if value.strip() in ("", "-1", "NoDevFiles"):
        summary = (
            f"CUDA_VISIBLE_DEVICES {value!r} hides every card from this process; each server gets "
            "its own"
        )
        return verdict(check, "warn", summary, fix=fix)
    names = [name.strip() for name in value.split(",")]
    if not all(name.isdecimal() for name in names):
        return verdict(check, "unknown", f"CUDA_VISIBLE_DEVICES names cards by id: {value}")
    hidden = sorted(set(profile.gpus) - {int(name) for name in names})
    if hidden:
        summary = f"CUDA_VISIBLE_DEVICES {value} hides GPUs {hidden}, which the run would use"
        return verdict(check, "warn", summary, fix=fix)
    return verdict(check, "ok", f"CUDA_VISIBLE_DEVICES {value} shows every card of the run")


def judge_cuda_home(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether the servers' compilers find one toolkit, and which."""
    check = "cuda_home"
    home = facts.environ.get("CUDA_HOME") or facts.environ.get("CUDA_PATH")
    fix = compose(profile, "Set CUDA_HOME to the folder of one toolkit, or compose one:", "env")
    if home is not None:
        if ":" in home:
            summary = f"CUDA_HOME {home!r} is a list, not a folder"
            return verdict(check, "fail", summary, fix=fix)
        if home not in facts.folders:
            return verdict(check, "unknown", f"CUDA_HOME {home!r} was not looked at")
        if not facts.folders[home]:
            return verdict(check, "fail", f"CUDA_HOME {home!r} does not exist", fix=fix)
    if facts.toolkit is None:
        pin = Fix(
            id="coherent_cuda_wheels",
            kind="pip",
            what="Install a toolkit beside the servers:",
            argv=_pin_argv(facts, profile),
        )
        return verdict(check, "fail", "no CUDA toolkit: kernels cannot be compiled", fix=pin)
    if facts.toolkit.origin == "wheels":
        summary = f"the toolkit lies in the wheels ({facts.toolkit.home}), where nobody looks"
        return verdict(check, "fail", summary, fix=fix)
    return verdict(check, "ok", f"{facts.toolkit.home} (by {facts.toolkit.origin})")


def judge_rocm(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge /opt/rocm, whose mere existence makes tvm_ffi call hipcc."""
    there = facts.folders.get("/opt/rocm")
    if there is None:
        return verdict("rocm", "unknown", "/opt/rocm was not looked at")
    if not there:
        return verdict("rocm", "ok", "no /opt/rocm")
    if facts.environ.get("TVM_FFI_GPU_BACKEND") == "cuda":
        return verdict("rocm", "ok", "/opt/rocm is there, and TVM_FFI_GPU_BACKEND says cuda")
    fix = compose(profile, "Set TVM_FFI_GPU_BACKEND=cuda for the launch:", "env")
    return verdict("rocm", "fail", "/opt/rocm flips tvm_ffi to hipcc", fix=fix)


def judge_coherence(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Hold the parts of the toolkit against each other: pip itself never does."""
    check, toolkit = "cuda_coherence", facts.toolkit
    if toolkit is None:
        return verdict(check, "unknown", _NO_TOOLKIT)
    versions = toolkit.versions
    if "nvcc" not in versions:
        return verdict(check, "unknown", "there is no nvcc, or it tells no version")
    series = toolkit.series
    if len(set(series.values())) > 1:
        mixed = ", ".join(f"{part} {version}" for part, version in sorted(series.items()))
        fix = Fix(
            id="coherent_cuda_wheels",
            kind="pip",
            what="Bring all parts to one version:",
            argv=_pin_argv(facts, profile),
        )
        summary = f"parts of different CUDA versions: {mixed}"
        return verdict(check, "fail", summary, fix=fix, values=versions)
    return verdict(check, "ok", f"CUDA {series['nvcc']} throughout", values=versions)


def judge_nvcc_for_card(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether nvcc knows the card's architecture."""
    check = "nvcc_for_card"
    found = [gpu.capability for gpu in used_gpus(facts, profile) if gpu.capability]
    capability = max(found, default=profile.capability)
    nvcc = facts.toolkit.versions.get("nvcc") if facts.toolkit else None
    if capability is None or nvcc is None:
        missing = "the card" if capability is None else "nvcc's version"
        return verdict(check, "unknown", f"not judged: {missing} is not known")
    least = compat.nvcc_minimum(capability)
    if tuple(int(part) for part in nvcc.split(".")[:2]) < least:
        what = f"Install nvcc {least[0]}.{least[1]} or newer:"
        fix = Fix(id="coherent_cuda_wheels", kind="pip", what=what, argv=_pin_argv(facts, profile))
        summary = f"nvcc {nvcc} does not know {name_arch(capability)}"
        return verdict(check, "fail", summary, fix=fix)
    return verdict(check, "ok", f"nvcc {nvcc} compiles for {name_arch(capability)}")


def judge_cccl(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge CCCL: there for nvcc, there for the host's compiler, and of one version."""
    toolkit, checks = facts.toolkit, ("nv_target", "host_cccl", "cccl_coherence")
    if toolkit is None:
        return tuple(verdict(check, "unknown", _NO_TOOLKIT) for check in checks)
    fix = compose(profile, "Compose a CUDA home with all of CCCL at its place:")
    if not toolkit.has_nv_target:
        absent = "nv/target is missing: kernels with fp16 or fp8 do not compile"
        first = verdict("nv_target", "fail", absent, fix=fix)
    else:
        first = verdict("nv_target", "ok", "nv/target is where nvcc looks")
    if not toolkit.has_host_cccl:
        hidden = "CCCL lies under include/cccl alone: g++ does not find <cuda/std/...>"
        second = verdict("host_cccl", "fail", hidden, fix=fix)
    else:
        second = verdict("host_cccl", "ok", "the host's compiler finds CCCL")
    if not toolkit.cccl:
        return first, second, verdict("cccl_coherence", "unknown", "CCCL tells no version")
    listed = ", ".join(f"{part} {version}" for part, version in sorted(toolkit.cccl.items()))
    whole = {"cub", "libcudacxx", "thrust"} <= set(toolkit.cccl)
    if len(set(toolkit.cccl.values())) > 1 or not whole:
        what = "cub, libcudacxx and thrust must be of one CCCL"
        mixed = verdict("cccl_coherence", "fail", f"{listed}: {what}", fix=fix, values=toolkit.cccl)
        return first, second, mixed
    return first, second, verdict("cccl_coherence", "ok", listed, values=toolkit.cccl)


def judge_headers(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge the headers of the libraries beside the toolkit: cublasLt.h, curand_kernel.h."""
    check, toolkit = "cuda_headers", facts.toolkit
    if toolkit is None:
        return verdict(check, "unknown", _NO_TOOLKIT)
    if toolkit.missing_headers:
        listed = ", ".join(toolkit.missing_headers)
        fix = compose(profile, "Compose a CUDA home that unites the headers of all wheels:")
        return verdict(check, "fail", f"not in {toolkit.home}/include: {listed}", fix=fix)
    return verdict(check, "ok", "every header of the other wheels is in reach")


def judge_libraries(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge what `-L$CUDA_HOME/lib64 -lcudart -lcuda` finds."""
    toolkit = facts.toolkit
    if toolkit is None:
        return tuple(verdict(check, "unknown", _NO_TOOLKIT) for check in ("libcudart", "libcuda"))
    fix = compose(profile, "Compose a CUDA home with lib64 and unversioned links:")
    if toolkit.has_cudart_link:
        cudart = verdict("libcudart", "ok", "lib64/libcudart.so is there")
    else:
        summary = "no lib64/libcudart.so: every link with -lcudart fails"
        cudart = verdict("libcudart", "fail", summary, fix=fix)
    if toolkit.libcuda == "whole":
        return cudart, verdict("libcuda", "ok", "a libcuda to link with is there")
    summary = (
        "the libcuda stub is empty: it links, and the loaded kernel lacks cuDeviceGet"
        if toolkit.libcuda == "empty"
        else "no libcuda.so to link with: every link with -lcuda fails"
    )
    return cudart, verdict("libcuda", "fail", summary, fix=fix)


def judge_probe(facts: BoxFacts, profile: BoxProfile) -> tuple[Verdict, ...]:
    """Judge the host's compiler, and the functional probe: compile and link for the card."""
    if facts.host_compiler is None:
        fix = manual("install_gxx", "Install g++ (Debian: `apt-get install g++`).")
        host = verdict("host_compiler", "fail", "there is no g++, which nvcc calls", fix=fix)
    elif not facts.host_compiler:
        host = verdict("host_compiler", "unknown", "g++ was not looked for")
    else:
        host = verdict("host_compiler", "ok", facts.host_compiler)
    return host, _judge_probe_run(facts, profile)


def judge_jit_cache(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether cached kernels hide a toolchain that changed under them."""
    check, cache, toolkit = "jit_cache", facts.jit_cache, facts.toolkit
    if cache is None or cache.n_objects == 0:
        return verdict(check, "ok", "no cached kernels", severity="warning")
    if toolkit is None or cache.oldest is None or not toolkit.built_at:
        summary = f"{cache.n_objects} cached kernels of an age that is not known"
        return verdict(check, "unknown", summary, severity="warning")
    if cache.keyed_by and cache.keyed_by == toolkit.hash:
        summary = f"{cache.n_objects} cached kernels, kept by toolchain"
        return verdict(check, "ok", summary, severity="warning")
    if cache.oldest < toolkit.built_at:
        summary = f"cached kernels at {cache.path} are older than the toolchain: they may hide it"
        fix = compose(profile, "Compose a CUDA home: its cache is kept by toolchain:")
        return verdict(check, "warn", summary, fix=fix, severity="warning")
    summary = f"{cache.n_objects} cached kernels, younger than the toolchain"
    return verdict(check, "ok", summary, severity="warning")


def judge_kernel_archs(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    """Judge whether sglang's compiled kernels hold the card's architecture."""
    check = "kernel_archs"
    found = {gpu.capability for gpu in used_gpus(facts, profile) if gpu.capability}
    capabilities = found or ({profile.capability} if profile.capability else set())
    if facts.kernel_archs is None or not capabilities:
        missing = "the card" if not capabilities else "what the kernel package holds"
        return verdict(check, "unknown", f"not judged: {missing} is not known")
    # A cubin runs on its own major and the same or a newer minor; PTX of an older one on both.
    held = {arch.removeprefix("sm_").rstrip("af") for arch in facts.kernel_archs}
    values = {"held": ",".join(facts.kernel_archs)}
    for capability in sorted(capabilities):
        minors = {f"{capability[0]}{minor}" for minor in range(capability[1] + 1)}
        if not minors & held:
            version = profile.sglang_version or "VERSION"
            fix = Fix(
                id="install_servers",
                kind="pip",
                what="Install the pinned servers' environment:",
                argv=("draftmill", "servers", "install", "--sglang", version),
            )
            summary = f"no kernel image for {name_arch(capability)} in sglang-kernel"
            return verdict(check, "fail", summary, fix=fix, values=values)
    return verdict(check, "ok", "sglang-kernel holds the card's architecture", values=values)


def _judge_probe_run(facts: BoxFacts, profile: BoxProfile) -> Verdict:
    check, probe = "cuda_probe", facts.probe
    if probe is None or probe.skipped or not probe.stages:
        why = probe.skipped if probe else "no toolkit"
        return verdict(check, "unknown", f"nothing was compiled: {why}")
    failed = probe.failed
    if failed is not None:
        values = {"stage": failed.name, "stderr": failed.stderr, "arch": probe.arch}
        lines = [line for line in failed.stderr.splitlines() if line.strip()] or ["no message"]
        # Compilers begin with where they were when it happened.
        told = next((line for line in lines if _IS_CAUSE.search(line)), lines[0])
        return verdict(
            check,
            "fail",
            f"{failed.name} for {probe.arch} failed: {told[:200]}",
            fix=_fix_probe(facts, profile, failed.stderr),
            values=values,
            command=failed.argv,
            returncode=failed.returncode,
        )
    last_stage = probe.stages[-1]
    done = ", ".join(stage.name for stage in probe.stages)
    if not probe.needs_libcuda:
        summary = "the linked probe does not ask for libcuda.so.1: its load will fail"
        fix = compose(profile, "Compose a CUDA home with a whole libcuda stub:")
        return verdict(check, "fail", summary, fix=fix, command=last_stage.argv, returncode=0)
    summary = f"a kernel for {probe.arch}: {done}"
    return verdict(check, "ok", summary, command=last_stage.argv, returncode=0)


def _fix_probe(facts: BoxFacts, profile: BoxProfile, stderr: str) -> Fix:
    cause = symptoms.diagnose(stderr)
    if cause is None:
        return manual("read_probe", "Read the compiler's message in the evidence.")
    if cause.check == "cuda_coherence":
        argv = _pin_argv(facts, profile)
        return Fix(id="coherent_cuda_wheels", kind="pip", what=cause.remedy, argv=argv)
    if cause.check in ("nv_target", "host_cccl", "cccl_coherence", "libcudart", "libcuda"):
        return compose(profile, cause.remedy)
    return manual(cause.check, cause.remedy)


def _pin_argv(facts: BoxFacts, profile: BoxProfile) -> tuple[str, ...]:
    python = facts.server_python.python if facts.server_python else "python3"
    release = compat.TOOLKIT.get(profile.sglang_version or "", "13.0.2")
    return (python, "-m", "pip", "install", f"{compat.CUDA_PIN}=={release}")
