"""A libcuda to link with: the driver's own, or one generated from cuda.h where there is no driver.

Enters: cuda.h and a host compiler. Leaves: a shared library whose functions do nothing and whose
soname is libcuda.so.1, so that what is linked with it asks for the driver's library when it is
loaded. An empty one would be dropped by the linker, and the load would fail.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

SONAME = "libcuda.so.1"

_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
# `#define cuCtxCreate cuCtxCreate_v2`: programs ask for the right-hand name.
_RENAMED = re.compile(
    r"^\s*#\s*define\s+cu\w+\s+(?:__CUDA_API_PT[DS]Z\()?(cu[A-Z]\w*)", re.MULTILINE
)
_SECONDS = 60


def find_driver_library(environ: Mapping[str, str]) -> Path | None:
    """Find the driver's libcuda.so.1; None: there is no driver here."""
    named = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for folder in (*_FOLDERS, *named):
        path = Path(folder) / SONAME
        with suppress(OSError):
            # A container without the driver may mount an empty file in its place.
            if b"\0cuDeviceGet\0" in path.read_bytes():
                return path
    return None


def list_functions(cuda_h: str) -> list[str]:
    """List the functions of the driver's library that a program built with cuda.h may ask for."""
    return sorted(set(_DECLARED.findall(cuda_h)) | set(_RENAMED.findall(cuda_h)))


def generate_stub(cuda_h: Path, compiler: str, out: Path) -> int:
    """Build a stub; return how many functions it has.

    Raises:
        OSError: The header cannot be read, or the compiler not be run or not build it.
    """
    functions = list_functions(cuda_h.read_text("utf-8", "replace"))
    source = "".join(f"void {name}(void) {{}}\n" for name in functions)
    # A fixed seed and no build id: the same header gives the same bytes.
    flags = ("-shared", "-fPIC", "-O0", "-nostdlib", f"-Wl,-soname,{SONAME}", "-Wl,--build-id=none")
    ended = subprocess.run(
        [compiler, "-x", "c", *flags, "-o", str(out), "-"],
        input=source,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
        env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
    )
    if ended.returncode != 0:
        raise OSError(f"{compiler} could not build the stub: {ended.stderr.strip()[:300]}")
    return len(functions)
