"""Reads a CUDA toolkit as the compilers of flashinfer and tvm_ffi would find and see it.

Enters: the environment of a launch, and the folder of the servers' packages. Leaves: ToolkitFacts.
It runs `nvcc --version` and reads headers; nothing is compiled.

Source: flashinfer and tvm_ffi look at CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from tasks.environment import compat
from tasks.environment.box_facts import JitCacheFacts, ToolkitFacts

Origin = Literal["composed", "CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda", "wheels"]

HOME_FILE = "home.json"
"""File of a composed home that says what it was made of."""

CCCL_VERSION_FILES = {
    "cub": ("cub/version.cuh", "CUB_VERSION", 100_000, 100),
    "libcudacxx": ("cuda/std/__cccl/version.h", "CCCL_VERSION", 1_000_000, 1_000),
    "thrust": ("thrust/version.h", "THRUST_VERSION", 100_000, 100),
}
"""Part of CCCL -> (header, macro, value of a major, value of a minor)."""

# Headers of libraries that kernels of flashinfer include, and that lie in wheels of their own.
_LIBRARY_HEADERS = ("cublasLt.h", "cublas_v2.h", "curand_kernel.h", "cusparse.h", "nvrtc.h")
_SYSTEM_LIBRARIES = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"))
_NVCC_SECONDS = 20


def read_toolkit(
    environ: Mapping[str, str],
    site_packages: Path | None,
    wheel_versions: Mapping[str, str],
    cuda_dir: Path | None,
) -> ToolkitFacts | None:
    """Read the toolkit that a launch with this environment would compile with; None: there is none.

    Args:
        environ: The environment of the launch.
        site_packages: Folder of the servers' packages.
        wheel_versions: Distribution -> version in it.
        cuda_dir: Folder of composed homes.
    """
    found = find_home(environ, site_packages, cuda_dir)
    if found is None:
        return None
    home, origin = found
    from_wheels = origin in ("wheels", "composed") or (
        site_packages is not None and home.resolve().is_relative_to(site_packages.resolve())
    )
    versions = _read_versions(home, wheel_versions if from_wheels else {})
    nvcc_dirs, host_dirs = _include_dirs(home, environ)
    cccl = read_cccl(nvcc_dirs)
    manifest = read_home_file(home)
    return ToolkitFacts(
        home=str(home),
        origin=origin,
        versions=versions,
        cccl=cccl,
        has_nv_target=any((folder / "nv" / "target").is_file() for folder in nvcc_dirs),
        has_host_cccl=any(
            (folder / "cuda" / "std" / "type_traits").is_file() for folder in host_dirs
        ),
        has_cudart_link=_find_library(home, environ, "libcudart.so") is not None,
        libcuda=_read_libcuda(_find_library(home, environ, "libcuda.so")),
        missing_headers=_missing_headers(home, host_dirs, site_packages),
        hash=str(manifest.get("hash", "")) or hash_toolchain(home, versions, cccl),
        built_at=_built_at(home),
    )


def find_home(
    environ: Mapping[str, str], site_packages: Path | None, cuda_dir: Path | None
) -> tuple[Path, Origin] | None:
    """Find the toolkit's folder in the order of flashinfer and tvm_ffi, the wheels last."""
    names: tuple[Literal["CUDA_HOME", "CUDA_PATH"], ...] = ("CUDA_HOME", "CUDA_PATH")
    for name in names:
        value = environ.get(name)
        # A list or a folder that is not there is the business of the check of CUDA_HOME.
        if value and Path(value).is_dir():
            home = Path(value)
            composed = cuda_dir is not None and home.absolute().is_relative_to(cuda_dir.absolute())
            return home, "composed" if composed else name
    nvcc = shutil.which("nvcc", path=environ.get("PATH"))
    if nvcc is not None:
        return Path(nvcc).parent.parent, "PATH"
    if Path("/usr/local/cuda").is_dir():
        return Path("/usr/local/cuda"), "/usr/local/cuda"
    wheels = find_wheels(site_packages)
    return None if wheels is None else (wheels, "wheels")


def find_wheels(site_packages: Path | None) -> Path | None:
    """Find the toolkit in the NVIDIA wheels of an environment: nvidia/cu13."""
    if site_packages is None:
        return None
    # Beside cu13 lie cudnn, cusparselt and others, which have an include folder too.
    found = [
        folder
        for folder in site_packages.glob("nvidia/cu*")
        if folder.name[2:].isdecimal() and (folder / "include").is_dir()
    ]
    return max(found, key=lambda folder: int(folder.name[2:]), default=None)


def list_wheel_includes(site_packages: Path | None) -> list[Path]:
    """List the include folders of all NVIDIA wheels of an environment."""
    if site_packages is None:
        return []
    return sorted(folder for folder in site_packages.glob("nvidia/*/include") if folder.is_dir())


def read_cccl(folders: list[Path]) -> dict[str, str]:
    """Read the version of each part of CCCL from the first of the folders that has it."""
    found = {}
    for part, (header, macro, major, minor) in CCCL_VERSION_FILES.items():
        path = next((folder / header for folder in folders if (folder / header).is_file()), None)
        number = _read_macro(path, macro) if path else None
        if number is not None:
            rest = number % major
            found[part] = f"{number // major}.{rest // minor}.{rest % minor}"
    return found


def hash_toolchain(home: Path, versions: Mapping[str, str], cccl: Mapping[str, str]) -> str:
    """Name a toolchain by what decides its output: its versions, and the compiler's size."""
    with suppress(OSError):
        size = (home / "bin" / "nvcc").resolve().stat().st_size
        text = json.dumps([dict(versions), dict(cccl), size], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    return ""


def read_home_file(home: Path) -> dict[str, Any]:
    """Read what a composed home says of itself; empty: it is none."""
    with suppress(OSError, ValueError):
        return dict(json.loads((home / HOME_FILE).read_bytes()))
    return {}


def read_jit_cache(environ: Mapping[str, str]) -> JitCacheFacts:
    """Read the age of the kernels that flashinfer compiled earlier."""
    base = Path(environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    folder = base / ".cache" / "flashinfer"
    oldest: float | None = None
    n_objects = 0
    for path in folder.rglob("*.so"):
        with suppress(OSError):
            n_objects += 1
            modified = path.stat().st_mtime
            oldest = modified if oldest is None else min(oldest, modified)
    keyed_by = base.name if base.parent.name == "jit" else ""
    return JitCacheFacts(path=str(folder), n_objects=n_objects, oldest=oldest, keyed_by=keyed_by)


def read_kernel_archs(home: Path | None, site_packages: Path | None) -> tuple[str, ...] | None:
    """Read the architectures in sglang's kernel package; None: no cuobjdump, or no package."""
    beside = str(home / "bin") if home else None
    tool = shutil.which("cuobjdump", path=beside) or shutil.which("cuobjdump")
    objects = sorted(site_packages.glob("sgl_kernel/**/*.so")) if site_packages else []
    if tool is None or not objects:
        return None
    found: set[str] = set()
    for path in objects:
        with suppress(OSError, subprocess.TimeoutExpired):
            told = subprocess.run(
                [tool, "--list-elf", str(path)],
                capture_output=True,
                text=True,
                timeout=_NVCC_SECONDS,
                check=False,
            )
            found |= set(re.findall(r"\bsm_\d+[af]?\b", told.stdout))
    return tuple(sorted(found)) or None


def _read_versions(home: Path, wheel_versions: Mapping[str, str]) -> dict[str, str]:
    found = {}
    nvcc = home / "bin" / "nvcc"
    if nvcc.exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            told = subprocess.run(
                [str(nvcc), "--version"],
                capture_output=True,
                text=True,
                timeout=_NVCC_SECONDS,
                check=False,
            )
            version = re.search(r"V(\d+\.\d+\.\d+)", told.stdout)
            if version:
                found["nvcc"] = version[1]
    for part in ("crt", "nvvm"):
        version_of = wheel_versions.get(compat.CUDA_DISTRIBUTIONS[part])
        if version_of is not None:
            found[part] = version_of
    for part, header, macro in (
        ("runtime", "cuda_runtime_api.h", "CUDART_VERSION"),
        ("driver_api", "cuda.h", "CUDA_VERSION"),
    ):
        number = _read_macro(home / "include" / header, macro)
        if number is not None:
            found[part] = f"{number // 1000}.{number % 1000 // 10}"
    return found


def _read_macro(header: Path, macro: str) -> int | None:
    with suppress(OSError):
        text = header.read_text("utf-8", "replace")
        found = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
        return int(found[1]) if found else None
    return None


def _include_dirs(home: Path, environ: Mapping[str, str]) -> tuple[list[Path], list[Path]]:
    """List where nvcc looks for headers, and where g++ with -I$CUDA_HOME/include does."""
    both = [Path(p) for p in environ.get("CPATH", "").split(":") if p]
    cplus = [Path(p) for p in environ.get("CPLUS_INCLUDE_PATH", "").split(":") if p]
    prepended = _flag_dirs(environ.get("NVCC_PREPEND_FLAGS", ""))
    appended = _flag_dirs(environ.get("NVCC_APPEND_FLAGS", ""))
    include = home / "include"
    host = [include, *both, *cplus]
    return [*prepended, *appended, *host, include / "cccl"], host


def _flag_dirs(flags: str) -> list[Path]:
    found = []
    try:
        words: Iterator[str] = iter(shlex.split(flags))
    except ValueError:  # a quote without its end
        words = iter(flags.split())
    for word in words:
        if word in ("-I", "-isystem"):
            found.append(Path(next(words, "")))
        elif word.startswith("-I"):
            found.append(Path(word[2:]))
    return found


def _find_library(home: Path, environ: Mapping[str, str], name: str) -> Path | None:
    """Find what `-L$home/lib64 -L$home/lib64/stubs` and the linker's own folders give."""
    named = [Path(p) for p in environ.get("LIBRARY_PATH", "").split(":") if p]
    folders = (home / "lib64", home / "lib64" / "stubs", *named, *_SYSTEM_LIBRARIES)
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def _read_libcuda(path: Path | None) -> Literal["whole", "empty", "absent"]:
    if path is None:
        return "absent"
    with suppress(OSError):
        # The name stands in the table of dynamic symbols of a library that has the function.
        return "whole" if b"\0cuDeviceGet\0" in path.read_bytes() else "empty"
    return "absent"


def _missing_headers(
    home: Path, host_dirs: list[Path], site_packages: Path | None
) -> tuple[str, ...]:
    elsewhere = list_wheel_includes(site_packages)
    return tuple(
        header
        for header in _LIBRARY_HEADERS
        if not any((folder / header).is_file() for folder in host_dirs)
        and any((folder / header).is_file() for folder in elsewhere)
    )


def _built_at(home: Path) -> float:
    parts = ("bin/nvcc", "nvvm/bin/cicc", "include/cuda_runtime_api.h")
    times = [0.0]
    for part in parts:
        with suppress(OSError):
            times.append((home / part).resolve().stat().st_mtime)
    return max(times)
