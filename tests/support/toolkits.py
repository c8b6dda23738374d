"""Small invented toolkits: the folders and headers that decide, with a compiler that only talks."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tasks.environment.compose import HomePlan, plan_home

VERSIONS = {"nvcc": "13.0.88", "crt": "13.0.88", "nvvm": "13.0.88", "runtime": "13.0"}
_NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"


def write_wheels(site_packages: Path, *, cccl: bool = True) -> Path:
    """Write the layout of the NVIDIA wheels; returns its toolkit folder."""
    home = site_packages / "nvidia" / "cu13"
    files = {
        "bin/nvcc": _NVCC,
        "bin/ptxas": "",
        "nvvm/bin/cicc": "",
        "include/cuda.h": "#define CUDA_VERSION 13000\nCUresult CUDAAPI cuDeviceGet(int);\n",
        "include/cuda_runtime_api.h": "#define CUDART_VERSION  13000\n",
        "include/crt/host_defines.h": "",
        "lib/libcudart.so.13": "",
        "lib/libcudart_static.a": "",
    }
    if cccl:
        files |= {f"include/cccl/{path}": text for path, text in cccl_files("3.0.1").items()}
    _write(home, files)
    (home / "bin" / "nvcc").chmod(0o755)
    return home


def write_flashinfer(site_packages: Path, version: str = "3.3.2") -> Path:
    """Write the CCCL that flashinfer carries, in its own layout."""
    root = site_packages / "flashinfer" / "data" / "cccl"
    places = {"cub": "cub/cub", "thrust": "thrust/thrust"}
    places |= {"cuda": "libcudacxx/include/cuda", "nv": "libcudacxx/include/nv"}
    for path, text in cccl_files(version).items():
        part, rest = path.split("/", 1)
        _write(root, {f"{places[part]}/{rest}": text})
    return root


def cccl_files(version: str) -> dict[str, str]:
    """The files of a CCCL that tell its version."""
    major, minor, patch = (int(part) for part in version.split("."))
    old = major * 100_000 + minor * 100 + patch
    new = major * 1_000_000 + minor * 1_000 + patch
    return {
        "cub/version.cuh": f"#define CUB_VERSION {old} // one number\n",
        "thrust/version.h": f"#define THRUST_VERSION {old}\n",
        "cuda/std/__cccl/version.h": f"#define CCCL_VERSION {new}\n",
        "cuda/std/type_traits": "",
        "nv/target": "",
    }


def write_driver(folder: Path) -> Path:
    """Write a driver's library as far as it is looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libcuda.so.1"
    path.write_bytes(b"\x7fELF\0cuDeviceGet\0cuInit\0")
    return path


def plan_of(site_packages: Path, driver: Path) -> HomePlan:
    """Plan the home of invented wheels."""
    return plan_home(
        site_packages / "nvidia" / "cu13",
        site_packages,
        VERSIONS,
        {"LD_LIBRARY_PATH": str(driver.parent)},
        compiler=None,
        capability=(12, 0),
    )


def snapshot(folder: Path) -> dict[str, str]:
    """Describe a tree byte for byte: every folder, file, link and mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_dir():
            found[name] = "folder"
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = f"{path.stat().st_mode:o} {digest}"
    return found


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
