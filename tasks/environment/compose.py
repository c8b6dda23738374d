"""Plans and writes a private CUDA home: a folder of links that looks as compilers expect one.

Enters: a toolkit's folder (wheels or a system's) and the servers' packages. Leaves: a HomePlan, and
from that a folder with bin, nvvm, include (the union of all headers), lib64 with unversioned
libraries, and a libcuda to link with. Neither the system nor site-packages is written to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.environment.cuda_stub import find_driver_library, generate_stub
from tasks.environment.toolkit_facts import (
    HOME_FILE,
    hash_toolchain,
    list_wheel_includes,
    read_cccl,
    read_home_file,
)

_CCCL = ("nv", "cuda", "cub", "thrust")
_STUB = "lib64/stubs/libcuda.so"
_VERSIONED = re.compile(r"^(lib.+\.so)\.[0-9.]+$")


@dataclass(frozen=True, slots=True)
class HomePlan:
    """What a home will be made of.

    Attributes:
        links: Path in the home -> what it points at.
        cccl_from: Folder that all of CCCL is taken from.
        toolchain: Names the toolchain; the cache of compiled kernels is kept by it.
        capability: Card that it is for; None: not known.
        stub_header: cuda.h to generate a libcuda from; None: the driver's own is linked.
        compiler: Host compiler that builds the stub.
    """

    links: dict[str, Path]
    cccl_from: Path
    toolchain: str
    capability: tuple[int, int] | None
    stub_header: Path | None
    compiler: str | None

    @property
    def name(self) -> str:
        """Name of the home's folder: another content, another name."""
        text = json.dumps(
            [{key: str(path) for key, path in self.links.items()}, self.manifest()], sort_keys=True
        )
        return f"{self.toolchain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def manifest(self) -> dict[str, object]:
        """Give what the home says of itself."""
        return {
            "hash": self.toolchain,
            "cccl_from": str(self.cccl_from),
            "capability": list(self.capability) if self.capability else None,
            "generated_libcuda": self.stub_header is not None,
        }


class CannotComposeError(ValueError):
    """What is there does not make a home; the message says what is missing."""


def plan_home(
    toolkit: Path,
    site_packages: Path | None,
    versions: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    compiler: str | None,
    capability: tuple[int, int] | None,
) -> HomePlan:
    """Plan a home.

    Raises:
        CannotComposeError: There is no nvcc, no whole CCCL, or neither a driver nor a compiler.
    """
    if not (toolkit / "bin" / "nvcc").exists():
        raise CannotComposeError(f"{toolkit} has no bin/nvcc")
    cccl_from, cccl = _choose_cccl(toolkit, site_packages)
    links = {f"bin/{entry.name}": entry for entry in sorted((toolkit / "bin").iterdir())}
    if (toolkit / "nvvm").is_dir():
        links["nvvm"] = toolkit / "nvvm"
    includes = [toolkit / "include", *list_wheel_includes(site_packages)]
    for folder in includes:
        for entry in sorted(folder.iterdir()):
            if entry.name not in (*_CCCL, "cccl"):
                links.setdefault(f"include/{entry.name}", entry)
    for part, path in cccl.items():
        links[f"include/{part}"] = path
        links[f"include/cccl/{part}"] = path
    libraries = [toolkit / "lib64", toolkit / "lib"]
    if site_packages is not None:
        libraries += sorted(site_packages.glob("nvidia/*/lib"))
    for folder in libraries:
        for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
            if entry.name == "stubs":
                continue
            links.setdefault(f"lib64/{entry.name}", entry)
            plain = _VERSIONED.match(entry.name)
            if plain:
                links.setdefault(f"lib64/{plain[1]}", entry)
    driver = find_driver_library(environ)
    if driver is not None:
        links[_STUB] = driver
    elif compiler is None or not (toolkit / "include" / "cuda.h").is_file():
        raise CannotComposeError("there is no driver, and no g++ or cuda.h to make a libcuda from")
    return HomePlan(
        links={key: path.resolve() for key, path in links.items()},
        cccl_from=cccl_from,
        toolchain=hash_toolchain(toolkit, versions, read_cccl_of(cccl)),
        capability=capability,
        stub_header=None if driver else (toolkit / "include" / "cuda.h").resolve(),
        compiler=compiler,
    )


def write_home(plan: HomePlan, folder: Path) -> None:
    """Write a home into a folder that is not there yet.

    Raises:
        OSError: The disk, or the compiler that builds the stub, fails.
    """
    folder.mkdir(parents=True)
    for name, target in plan.links.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    (folder / "lib").symlink_to("lib64")
    if plan.stub_header is not None and plan.compiler is not None:
        (folder / _STUB).parent.mkdir(parents=True, exist_ok=True)
        generate_stub(plan.stub_header, plan.compiler, folder / _STUB)
    # Last: a folder that has it is whole.
    (folder / HOME_FILE).write_text(json.dumps(plan.manifest(), sort_keys=True) + "\n")


def is_whole(folder: Path) -> bool:
    """Whether a home is complete, and nothing that it points at has gone since."""
    links = (folder / "bin" / "nvcc", folder / "include" / "nv" / "target", folder / _STUB)
    return bool(read_home_file(folder)) and all(link.exists() for link in links)


def read_cccl_of(parts: Mapping[str, Path]) -> dict[str, str]:
    """Read the versions of CCCL's parts, each of which may lie in a folder of its own."""
    return read_cccl([path.parent for path in parts.values()])


def _choose_cccl(toolkit: Path, site_packages: Path | None) -> tuple[Path, dict[str, Path]]:
    """Choose where all of CCCL comes from: the toolkit's own, else flashinfer's; never a mixture.

    Raises:
        CannotComposeError: No place has all of it at one version.
    """
    plain = [toolkit / "include" / "cccl", toolkit / "include"]
    for folder in list_wheel_includes(site_packages):
        plain += [folder / "cccl", folder]
    candidates = [(folder, {part: folder / part for part in _CCCL}) for folder in plain]
    if site_packages is not None:
        root = site_packages / "flashinfer" / "data" / "cccl"
        cuda = root / "libcudacxx" / "include"
        parts = {"nv": cuda / "nv", "cuda": cuda / "cuda"}
        parts |= {"cub": root / "cub" / "cub", "thrust": root / "thrust" / "thrust"}
        candidates.append((root, parts))
    for folder, parts in candidates:
        whole = all(path.is_dir() for path in parts.values())
        versions = read_cccl_of(parts) if whole else {}
        if len(versions) == 3 and len(set(versions.values())) == 1:
            return folder, parts
    raise CannotComposeError("no place has cub, libcudacxx and thrust at one version")
