"""Reads the box, once: ports, disk, limits, files, the servers' Python, the GPUs.

Enters: a BoxProfile, which says what is worth reading. Leaves: BoxFacts. It exists so that every
judgement is pure: this module looks and does not judge. It starts one short process (the servers'
own Python, asked for package versions) and imports neither torch nor sglang.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pynvml

from tasks.environment import compat
from tasks.environment.ports import find_port_holder
from tasks.environment.record import (
    BoxFacts,
    BoxProfile,
    DiskFacts,
    GpuFacts,
    NvmlFacts,
    PythonFacts,
)

_GIB = 2**30
_MIB = 2**20
_PYTHON_SECONDS = 60
_MODULE_VERSION = Path("/proc/driver/nvidia/version")
_READ_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
# Name in compat.NVML_MEANING of each NVML error that has a remedy of its own.
_NVML_ERRORS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "LibraryNotFound",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "LibRmVersionMismatch",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "DriverNotLoaded",
    pynvml.NVML_ERROR_GPU_IS_LOST: "GpuIsLost",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "NotSupported",
}


def read_facts(profile: BoxProfile) -> BoxFacts:
    """Read what the profile asks about; takes a second or two, and changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cuda_home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    holders = {port: find_port_holder(profile.host, port) for port in profile.ports}
    return BoxFacts(
        taken_ports={port: holder for port, holder in holders.items() if holder is not None},
        spool=read_disk(profile.spool_dir),
        n_open_files_soft=_finite(soft),
        n_open_files_hard=_finite(hard),
        shm_gib=_read_shm_gib(),
        missing_files=tuple(str(path) for path in profile.files if not path.exists()),
        server_python=read_python(profile.server_python) if profile.server_python else None,
        nvml=read_nvml() if profile.needs_gpu else None,
        kernel_module=_read_kernel_module() if profile.needs_gpu else "",
        cuda_home=cuda_home,
        cuda_home_exists=cuda_home is not None and Path(cuda_home).is_dir(),
    )


def read_disk(folder: Path) -> DiskFacts:
    """Read the file system that a folder lies on, or will lie on."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    resolved = existing.resolve()
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if resolved.is_relative_to(mount.mountpoint)
    ]
    mount = max(mounts, key=lambda each: len(each.mountpoint), default=None)
    return DiskFacts(
        path=str(folder),
        mountpoint=mount.mountpoint if mount else "",
        fs_type=mount.fstype if mount else "unknown",
        free_gib=psutil.disk_usage(str(resolved)).free / _GIB,
        writable=os.access(resolved, os.W_OK | os.X_OK),
    )


def read_python(python: str) -> PythonFacts:
    """Ask a Python environment for the versions of what serving needs, importing none of it."""
    names = {name for pins in compat.PINS.values() for name in pins}
    names |= set(compat.CUDA_DISTRIBUTIONS.values())
    # -I: neither the working directory nor PYTHONPATH may answer for that environment.
    argv = [python, "-I", "-c", _READ_VERSIONS, *sorted(names)]
    try:
        ended = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PYTHON_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return PythonFacts(python=python, returncode=None, error=str(error))
    try:
        versions = json.loads(ended.stdout)
    except ValueError:
        error_line = (ended.stderr.strip().splitlines() or ["no output"])[-1]
        return PythonFacts(python=python, returncode=ended.returncode, error=error_line[:200])
    return PythonFacts(python=python, returncode=ended.returncode, versions=versions)


def read_nvml() -> NvmlFacts:
    """Read the GPUs; an NVML error becomes a fact of its own, never an exception."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlFacts(error=name_nvml_error(error))
    driver_version = ""
    try:
        driver_version = str(pynvml.nvmlSystemGetDriverVersion())
        gpus = tuple(_read_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
        return NvmlFacts(driver_version=driver_version, gpus=gpus)
    except pynvml.NVMLError as error:
        return NvmlFacts(error=name_nvml_error(error), driver_version=driver_version)
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def name_nvml_error(error: pynvml.NVMLError) -> str:
    """Return the name of an NVML error in `compat.NVML_MEANING`."""
    return _NVML_ERRORS.get(error.value, "Unknown")


def _read_gpu(index: int) -> GpuFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    capability: tuple[int, int] | None = None
    with suppress(pynvml.NVMLError_NotSupported):
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        capability = (int(major), int(minor))
    pids: tuple[int, ...] = ()
    with suppress(pynvml.NVMLError_NotSupported):
        running = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        pids = tuple(int(process.pid) for process in running)
    return GpuFacts(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        capability=capability,
        memory_total_mib=int(memory.total) // _MIB,
        memory_used_mib=int(memory.used) // _MIB,
        pids=pids,
    )


def _read_kernel_module() -> str:
    try:
        return _MODULE_VERSION.read_text().splitlines()[0]
    except (OSError, IndexError):
        return ""


def _read_shm_gib() -> float | None:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 # nosec B108 - its size is the question
    except OSError:
        return None
    return found.f_blocks * found.f_frsize / _GIB


def _finite(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit
