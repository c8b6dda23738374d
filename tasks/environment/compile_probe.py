"""The functional probe: compile and link a kernel that uses what real kernels use, for one card.

Enters: a toolkit's folder and an architecture. Leaves: ProbeFacts, up to the first step that fails.
It exists because a trivial kernel lies: it compiles where fp16, CCCL or a link with the driver's
library do not. Each step is called as flashinfer and tvm_ffi call it; everything lands in a
temporary folder.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tasks.environment.box_facts import ProbeFacts, StageFacts

KERNEL = """
#include <cuda_runtime.h>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cooperative_groups.h>
#include <nv/target>
#include <cuda/std/cstdint>
#include <cuda/std/__cccl/cuda_toolkit.h>
__global__ void twice(__half *x) {
  auto block = cooperative_groups::this_thread_block();
  NV_IF_TARGET(NV_IS_DEVICE, (x[block.thread_rank()] = __hadd(x[0], x[0]);))
}
// 0: the kernel ran and its sum is right; else the step that failed.
extern "C" int draftmill_probe() {
  CUdevice device;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) return 1;
  __half one = __float2half(1.5f), *x = nullptr;
  if (cudaMalloc(reinterpret_cast<void **>(&x), sizeof one) != cudaSuccess) return 2;
  if (cudaMemcpy(x, &one, sizeof one, cudaMemcpyHostToDevice) != cudaSuccess) return 3;
  twice<<<1, 1>>>(x);
  if (cudaDeviceSynchronize() != cudaSuccess) return 4;
  if (cudaMemcpy(&one, x, sizeof one, cudaMemcpyDeviceToHost) != cudaSuccess) return 5;
  cudaFree(x);
  return __half2float(one) == 3.0f ? 0 : 6;
}
"""
HOST = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda/std/type_traits>
int main() { return CUDART_VERSION == 0; }
"""
_RUN = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).draftmill_probe())"
_STAGE_SECONDS = 120
_STDERR_BYTES = 2000


def run_probe(
    home: Path,
    arch: str,
    environ: Mapping[str, str],
    *,
    host_compiler: str | None,
    on_card: str | None = None,
) -> ProbeFacts:
    """Compile and link the probe.

    Args:
        home: The toolkit's folder.
        arch: As sm_120.
        environ: The environment of a launch.
        host_compiler: Path of g++; None: there is none, and nothing can be compiled.
        on_card: Python that loads and runs the probe on the first card; None: it is not run.
    """
    nvcc = home / "bin" / "nvcc"
    if host_compiler is None:
        return ProbeFacts(arch=arch, skipped="there is no g++")
    with tempfile.TemporaryDirectory(prefix="draftmill-probe-") as name:
        folder = Path(name)
        (folder / "probe.cu").write_text(KERNEL)
        (folder / "host.cpp").write_text(HOST)
        include = ("-I", str(home / "include"))
        target = (f"-arch={arch}", "-std=c++17")
        built = ("-Xcompiler", "-fPIC", "-o", "probe.o", "probe.cu")
        libraries = (f"-L{home}/lib64", f"-L{home}/lib64/stubs", "-lcudart", "-lcuda")
        # torch has the runtime loaded already; the probe must find it by itself.
        runtime = f"-Wl,-rpath,{home}/lib64"
        steps: dict[str, tuple[str, ...]] = {
            "preprocess": (str(nvcc), "-E", *target, "-o", "probe.ii", "probe.cu"),
            "compile": (str(nvcc), "-c", *target, *built),
            "host headers": (
                *(host_compiler, "-E", "-std=c++17", *include, "-o", "host.ii", "host.cpp"),
            ),
            "link": (host_compiler, "-shared", "-o", "probe.so", "probe.o", *libraries, runtime),
        }
        if not nvcc.exists():
            # The headers and the libraries can be held against a host compiler all the same.
            (folder / "probe.cpp").write_text("int main() { return 0; }")
            del steps["preprocess"], steps["compile"]
            steps["link"] = (host_compiler, "-o", "probe", "probe.cpp", *libraries)
        if on_card is not None:
            steps["run"] = (on_card, "-c", _RUN, "./probe.so")
        stages: list[StageFacts] = []
        for step, argv in steps.items():
            stages.append(_run_stage(step, argv, folder, {**environ, "CUDA_HOME": str(home)}))
            if stages[-1].returncode != 0:
                break
        linked = folder / "probe.so"
        needs_libcuda = not linked.exists() or b"libcuda.so.1\0" in linked.read_bytes()
        return ProbeFacts(arch=arch, stages=tuple(stages), needs_libcuda=needs_libcuda)


def find_host_compiler(environ: Mapping[str, str]) -> str | None:
    """Find g++ as nvcc does: on PATH."""
    return shutil.which("g++", path=environ.get("PATH"))


def _run_stage(
    name: str, argv: tuple[str, ...], folder: Path, environ: Mapping[str, str]
) -> StageFacts:
    try:
        ended = subprocess.run(
            argv,
            cwd=folder,
            env=dict(environ),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_STAGE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return StageFacts(name=name, argv=argv, returncode=-1, stderr="no end in time")
    except OSError as error:
        return StageFacts(name=name, argv=argv, returncode=-1, stderr=str(error))
    # The first lines name the cause; what follows are its consequences.
    stderr = (ended.stderr or ended.stdout)[:_STDERR_BYTES] if ended.returncode else ""
    return StageFacts(name=name, argv=argv, returncode=ended.returncode, stderr=stderr)
