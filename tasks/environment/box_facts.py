"""What was read of the box, once, as plain values: nothing in here judges.

Enters: what the modules *_facts.py saw. Leaves: one BoxFacts. It exists so that every judgement can
be tested on boxes that nobody has at hand. A fact that could not be had is None, or says why.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DiskFacts(_Record):
    """The file system below a folder, which itself need not exist yet."""

    path: str
    mountpoint: str
    fs_type: str
    free_gib: float
    writable: bool


class PythonFacts(_Record):
    """A Python environment, as its own interpreter tells: distribution -> version."""

    python: str
    returncode: int | None = Field(description="None: it could not be run at all.")
    error: str = ""
    versions: dict[str, str] = Field(default_factory=dict)
    site_packages: str = Field(default="", description="Folder that holds its packages.")


class GpuProcess(_Record):
    """A process that holds memory of a GPU; `name` is empty where it belongs to a stranger."""

    pid: int
    name: str = ""


class GpuFacts(_Record):
    """One GPU; memory in MiB. None: the card or the driver does not say."""

    index: int
    name: str
    capability: tuple[int, int] | None
    memory_total_mib: int
    memory_used_mib: int
    bus_id: str = ""
    processes: tuple[GpuProcess, ...] | None = Field(
        default=(), description="Compute processes; empty in containers."
    )
    mig: bool | None = False
    ecc_errors: int | None = Field(default=0, description="Uncorrected, since the last reboot.")
    throttled_by: tuple[str, ...] | None = ()
    n_nvlinks: int | None = 0
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class PairFacts(_Record):
    """How two GPUs reach each other; `level` is NVML's: 10 one switch ... 50 between sockets."""

    first: int
    second: int
    level: int | None = None
    p2p: bool | None = None


class NvmlFacts(_Record):
    """What NVML says; `error` is the name of the error that ended the reading, else empty."""

    error: str = ""
    driver_version: str = ""
    cuda_version: int | None = Field(default=None, description="Newest CUDA, as 13000 for 13.0.")
    gpus: tuple[GpuFacts, ...] = ()
    pairs: tuple[PairFacts, ...] = ()


class XidFacts(_Record):
    """One error that the driver wrote into the kernel's log."""

    bus_id: str
    code: int
    line: str


class ModelFacts(_Record):
    """The model's files; of a Hub repository, what its cache holds."""

    path: str
    is_local: bool
    missing: tuple[str, ...] = Field(default=(), description="Files that are absent or cut short.")
    error: str = Field(default="", description="Why the files could not be read.")
    weights_gib: float | None = None
    architectures: tuple[str, ...] = ()
    has_mtp: bool | None = None
    disk: DiskFacts | None = Field(default=None, description="Where a download would land.")


class ToolkitFacts(_Record):
    """A CUDA toolkit, as a compiler called by flashinfer or tvm_ffi would see it."""

    home: str
    origin: Literal["composed", "CUDA_HOME", "CUDA_PATH", "PATH", "/usr/local/cuda", "wheels"]
    versions: dict[str, str] = Field(
        default_factory=dict, description="nvcc, crt, nvvm, runtime, driver_api -> version."
    )
    cccl: dict[str, str] = Field(
        default_factory=dict, description="cub, libcudacxx, thrust -> CCCL version."
    )
    has_nv_target: bool = True
    has_host_cccl: bool = Field(
        default=True, description="Whether a host compiler finds <cuda/std/...> in include/."
    )
    has_cudart_link: bool = Field(default=True, description="Whether -L$home/lib64 -lcudart links.")
    libcuda: Literal["whole", "empty", "absent"] = "whole"
    missing_headers: tuple[str, ...] = ()
    hash: str = Field(default="", description="Names this toolchain; another one has another.")
    built_at: float = Field(default=0.0, description="Unix seconds of the newest compiler part.")

    @property
    def series(self) -> dict[str, str]:
        """Part -> major.minor, of the parts that must share it."""
        return {
            part: ".".join(version.split(".")[:2])
            for part, version in self.versions.items()
            if part in ("nvcc", "crt", "nvvm", "runtime", "driver_api")
        }


class StageFacts(_Record):
    """One step of the functional probe."""

    name: str
    argv: tuple[str, ...]
    returncode: int
    stderr: str = ""


class ProbeFacts(_Record):
    """The functional probe: the steps that were run, up to the first that failed."""

    arch: str = Field(description="As sm_120.")
    stages: tuple[StageFacts, ...] = ()
    skipped: str = Field(default="", description="Why it was not run.")
    needs_libcuda: bool = Field(
        default=True, description="Whether the linked probe asks for libcuda.so.1."
    )

    @property
    def failed(self) -> StageFacts | None:
        """The step that failed, if any."""
        return next((stage for stage in self.stages if stage.returncode != 0), None)


class JitCacheFacts(_Record):
    """Kernels that flashinfer compiled earlier."""

    path: str
    n_objects: int
    oldest: float | None = Field(default=None, description="Unix seconds.")
    keyed_by: str = Field(default="", description="Toolchain hash in its path, if any.")


class StoreFacts(_Record):
    """What the probe of the store told."""

    uri: str
    create_only: bool | None = Field(default=None, description="None: not found out.")
    error: str = ""
    remedy: str = ""
    skew_seconds: float | None = Field(
        default=None, description="Our clock less the store's; None: it tells no time."
    )


class SourceFacts(_Record):
    """What resolving one source told."""

    key: str
    dataset: str = ""
    revision: str = ""
    error: str = ""
    remedy: str = ""
    is_user_fault: bool = True


class BoxFacts(_Record):
    """What was read of the box, once."""

    taken_ports: dict[int, str] = Field(description="Port -> who holds it.")
    unread_ports: tuple[int, ...] = Field(default=(), description="Ports that could not be tried.")
    spool: DiskFacts
    n_open_files_soft: int | None
    n_open_files_hard: int | None
    shm_gib: float | None
    missing_files: tuple[str, ...]
    unread_files: tuple[str, ...] = ()
    server_python: PythonFacts | None
    nvml: NvmlFacts | None = Field(description="None: not asked, as no GPU is needed.")
    kernel_module: str = Field(default="", description="First line of the module's version file.")
    xids: tuple[XidFacts, ...] | None = Field(
        default=(), description="None: the kernel's log cannot be read."
    )
    model: ModelFacts | None = None
    environ: dict[str, str] = Field(
        default_factory=dict, description="Variables that a launched server would see."
    )
    folders: dict[str, bool] = Field(
        default_factory=dict, description="Folders that matter -> whether they exist."
    )
    toolkit: ToolkitFacts | None = None
    host_compiler: str | None = Field(default="", description="Path of g++; None: there is none.")
    probe: ProbeFacts | None = None
    jit_cache: JitCacheFacts | None = None
    kernel_archs: tuple[str, ...] | None = Field(
        default=None, description="Architectures in sglang's kernel package; None: not told."
    )
