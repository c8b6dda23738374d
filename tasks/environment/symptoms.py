"""What a message or an error code means: which check it belongs to, and what mends it. Pure.

Enters: text of a compiler, a loader, a driver or a server; or the name of an NVML error. Leaves:
the check's id and the remedy. It exists because each of these is met as a riddle far from its
cause.

Source: public reports on flashinfer, sglang, vllm, NCCL and the container toolkit; reproductions
with the CUDA 13.0 and 13.2 wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NVML_MEANING: dict[str, tuple[str, str]] = {
    "LibraryNotFound": (
        "no NVIDIA driver library on this machine",
        "Install the driver, or give the container the GPUs.",
    ),
    "LibRmVersionMismatch": (
        "the driver's library and its kernel module have different versions",
        "Reboot, so that the kernel loads the module that was installed.",
    ),
    "DriverNotLoaded": (
        "the NVIDIA kernel module is not loaded",
        "Run `nvidia-modprobe`, or reboot; read the kernel log if it fails again.",
    ),
    "GpuIsLost": (
        "a GPU has fallen off the bus",
        "Reset or power-cycle the machine; read the kernel log for its Xid.",
    ),
    "NotSupported": (
        "the card does not support the query",
        "Nothing to do; the figure stays unknown.",
    ),
    "Unknown": (
        "the driver answers with an unknown error",
        "In a container, restart it: its device cgroup was lost. Else read the kernel log.",
    ),
}
"""NVML error -> (what it means, what mends it)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a message tells: the check that judges its cause, and the remedy in words."""

    check: str
    remedy: str


_PIN = "Bring nvcc, crt, nvvm and the runtime headers to one version: pin them together."
_COMPOSE = "Compose the private CUDA home: `draftmill validate CONFIG --apply`."
_SYMPTOMS: tuple[tuple[str, str, str], ...] = (
    (r"nv/target: No such file", "nv_target", f"CCCL's headers are missing. {_COMPOSE}"),
    (r"CUDA compiler and CUDA toolkit headers are incompatible", "cuda_coherence", _PIN),
    (r"__cudaLaunch\W.*(requires 2 arguments|passed [12] arguments)", "cuda_coherence", _PIN),
    (r"Unsupported \.version", "cuda_coherence", _PIN),
    (r"cannot find -lcudart", "libcudart", _COMPOSE),
    (r"cannot find -lcuda\b", "libcuda", _COMPOSE),
    (r"undefined symbol: cu[A-Z]\w+", "libcuda", _COMPOSE),
    (r"libcuda\.so\.1: cannot open shared object", "libcuda", "Give the process the driver."),
    (r"(curand_kernel|cublasLt|cublas_v2|cusparse)\.h: No such file", "cuda_headers", _COMPOSE),
    (r"cuda/std/\S+: No such file", "host_cccl", f"CCCL lies where g++ does not look. {_COMPOSE}"),
    (r"cub/cub\.cuh.*error|namespace .?(cub|cuda::std).*(has no member|is not)", "cccl_coherence",
     f"cub, libcudacxx and thrust must be of one CCCL. {_COMPOSE}"),
    (r"CUDA_HOME.*:/|':/\S+/bin/nvcc'", "cuda_home", "Set CUDA_HOME to one folder."),
    (r"Unsupported gpu architecture|unsupported gpu architecture", "nvcc_for_card",
     "Install an nvcc that knows the card: 12.9 or newer for SM120."),
    (r"hipcc", "rocm", "Set TVM_FFI_GPU_BACKEND=cuda: /opt/rocm flips the compiler."),
    (r"no kernel image is available", "kernel_archs",
     "Install the kernel package that sglang was released with: it holds this architecture."),
    (r"FlashAttention v[34]|fa[34] .*(SM|sm)_?1[02]|FA[34] .*not supported", "attention_backend",
     "Set serving.attention_backend to flashinfer, or leave it empty."),
    (r"driver on your system is too old|CUDA driver version is insufficient", "driver",
     "Install driver 580 or newer (CUDA 13), then reboot."),
    (r"[Dd]river/library version mismatch", "nvml",
     "Reboot, so that the kernel loads the module that was installed."),
    (r"Failed to initialize NVML: Unknown Error", "nvml",
     "Restart the container: its device cgroup was lost at a daemon-reload."),
    (r"requires? (the )?(use of )?(the )?(NVIDIA )?open (gpu )?kernel modules", "kernel_module",
     "Install the driver's -open flavour, then reboot."),
    (r"NCCL.*(timeout|hang)|all_reduce.*(timed out|hang)", "topology",
     "Serve one copy a card (data parallel), or set NCCL_P2P_DISABLE=1."),
    (r"(/dev/shm|shared memory).*(No space|too small|insufficient)|Bus error", "shared_memory",
     "Start the container with a larger --shm-size, or with --ipc=host."),
    (r"CUDA out of memory|[Nn]ot enough memory", "gpu_memory",
     "Look who holds the card, wait until its processes have left NVML, or lower the needs."),
    (r"NVRM: Xid", "xid", "Read the kernel's log; reset or replace the card if it comes again."),
)  # fmt: skip


def diagnose(text: str) -> Diagnosis | None:
    """Tell what a message means; the first sign in the table that fits wins. None: not known."""
    for pattern, check, remedy in _SYMPTOMS:
        if re.search(pattern, text):
            return Diagnosis(check, remedy)
    return None
