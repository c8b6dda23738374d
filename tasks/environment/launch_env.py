"""The environment that a composed CUDA home gives to a launch: a face of this room for serving.

Enters: the folder of composed homes. Leaves: variables, empty where nothing was composed. It exists
because flashinfer and tvm_ffi look for a toolkit once a process: it must be told before the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tasks.environment.toolkit_facts import read_home_file

CURRENT = "current"
"""Link in the folder of composed homes: the one in use."""


def launch_environment(cuda_dir: Path) -> dict[str, str]:
    """Return what a server must have in its environment to compile with the composed home."""
    home = cuda_dir / CURRENT
    manifest = read_home_file(home)
    if not manifest:
        return {}
    # The real folder: a later repair then never moves a toolkit under a running server.
    home = home.resolve()
    workspace = cuda_dir.absolute() / "jit" / str(manifest["hash"])
    found = {
        "CUDA_HOME": str(home),
        "CUDA_PATH": str(home),
        # Cached kernels of another toolchain would hide what this one does.
        "FLASHINFER_WORKSPACE_BASE": str(workspace),
        "TVM_FFI_CACHE_DIR": str(workspace / "tvm-ffi"),
        "TVM_FFI_GPU_BACKEND": "cuda",
    }
    capability = manifest.get("capability")
    if capability:
        major, minor = capability
        family = "f" if major >= 10 else "a" if major == 9 else ""
        found["FLASHINFER_CUDA_ARCH_LIST"] = f"{major}.{minor}{family}"
        found["TVM_FFI_CUDA_ARCH_LIST"] = f"{major}.{minor}"
    return found


def effective_environment(
    cuda_dir: Path | None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment that a server launched now would see."""
    own = dict(os.environ if environ is None else environ)
    return own if cuda_dir is None else own | launch_environment(cuda_dir)
