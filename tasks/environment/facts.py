"""Reads the box, once, all probes side by side: BoxProfile in, BoxFacts out.

The profile says what is worth reading. It exists so that every judgement is pure: the modules
*_facts.py look and do not judge. Neither torch nor sglang is imported: the servers' own Python is
asked, and the toolkit is called as a server would call it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tasks.environment.box_facts import (
    BoxFacts,
    NvmlFacts,
    ProbeFacts,
    PythonFacts,
    ToolkitFacts,
)
from tasks.environment.compile_probe import find_host_compiler, run_probe
from tasks.environment.gpu_facts import read_nvml
from tasks.environment.host_facts import find_missing, read_disk, read_open_files, read_shm_gib
from tasks.environment.kernel_facts import read_kernel_module, read_xids
from tasks.environment.launch_env import effective_environment
from tasks.environment.model_facts import read_model
from tasks.environment.ports import find_port_holder
from tasks.environment.python_facts import read_python
from tasks.environment.record import BoxProfile
from tasks.environment.toolkit_facts import read_jit_cache, read_kernel_archs, read_toolkit

Progress = Callable[[str, int, int], None]
"""Called with the name of a probe that ended, how many have, and how many there are."""

_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TVM_FFI_GPU_BACKEND",
              "FLASHINFER_WORKSPACE_BASE")  # fmt: skip
_N_WORKERS = 12


def read_facts(profile: BoxProfile, on_progress: Progress = lambda *_: None) -> BoxFacts:
    """Read what the profile asks about; changes nothing.

    Takes a second or two, and some seconds more where a toolkit is there to compile the probe.
    """
    soft, hard = read_open_files()
    missing, unread = find_missing(profile.files)
    with ThreadPoolExecutor(_N_WORKERS, thread_name_prefix="doctor") as pool:
        probes: dict[str, Future[dict[str, Any]]] = {
            "ports": pool.submit(_read_ports, profile),
            "disk": pool.submit(lambda: {"spool": read_disk(profile.spool_dir)}),
        }
        python = pool.submit(
            lambda: read_python(profile.server_python) if profile.server_python else None
        )
        probes["python"] = pool.submit(lambda: {"server_python": python.result()})
        if profile.needs_gpu:
            nvml = pool.submit(read_nvml)
            probes["nvml"] = pool.submit(lambda: {"nvml": nvml.result()})
            probes["kernel"] = pool.submit(
                lambda: {"kernel_module": read_kernel_module(), "xids": read_xids()}
            )
            probes["cuda"] = pool.submit(
                lambda: _read_cuda(profile, python.result(), nvml.result())
            )
            if profile.model_path is not None:
                path, revision = profile.model_path, profile.model_revision
                probes["model"] = pool.submit(lambda: {"model": read_model(path, revision)})
        names = {future: name for name, future in probes.items()}
        for n_done, future in enumerate(as_completed(names), 1):
            on_progress(names[future], n_done, len(names))
        read = {key: value for probe in probes.values() for key, value in probe.result().items()}
    return BoxFacts(
        n_open_files_soft=soft,
        n_open_files_hard=hard,
        shm_gib=read_shm_gib(),
        missing_files=missing,
        unread_files=unread,
        **({"nvml": None} | read),
    )


def _read_ports(profile: BoxProfile) -> dict[str, Any]:
    taken: dict[int, str] = {}
    unread = []
    for port in profile.ports:
        try:
            holder = find_port_holder(profile.host, port)
        except OSError:
            unread.append(port)
            continue
        if holder is not None:
            taken[port] = holder
    return {"taken_ports": taken, "unread_ports": tuple(unread)}


def _read_cuda(profile: BoxProfile, python: PythonFacts | None, nvml: NvmlFacts) -> dict[str, Any]:
    environ = effective_environment(profile.cuda_dir)
    site_packages = Path(python.site_packages) if python and python.site_packages else None
    versions = python.versions if python else {}
    toolkit = read_toolkit(environ, site_packages, versions, profile.cuda_dir)
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    folders = {folder: Path(folder).is_dir() for folder in (named, "/opt/rocm") if folder}
    compiler = find_host_compiler(environ)
    found = {gpu.capability for gpu in nvml.gpus if gpu.index in profile.gpus and gpu.capability}
    capability = min(found, default=profile.capability)
    probe = None
    if toolkit is not None and capability is not None:
        arch = f"sm_{capability[0]}{capability[1]}"
        on_card = profile.server_python if found else None
        probe = run_probe(
            Path(toolkit.home), arch, environ, host_compiler=compiler, on_card=on_card
        )
        toolkit = _prove(toolkit, probe)
    home = Path(toolkit.home) if toolkit else None
    return {
        "environ": {name: environ[name] for name in _VARIABLES if name in environ},
        "folders": folders,
        "toolkit": toolkit,
        "host_compiler": compiler,
        "probe": probe,
        "jit_cache": read_jit_cache(environ),
        "kernel_archs": read_kernel_archs(home, site_packages),
    }


def _prove(toolkit: ToolkitFacts, probe: ProbeFacts) -> ToolkitFacts:
    """Believe a compiler that found a header over our own search for it (nvcc may be a wrapper)."""
    passed = {stage.name for stage in probe.stages if stage.returncode == 0}
    return toolkit.model_copy(
        update={
            "has_nv_target": toolkit.has_nv_target or "preprocess" in passed,
            "has_host_cccl": toolkit.has_host_cccl or "host headers" in passed,
        }
    )
