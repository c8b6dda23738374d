"""The records of this room: what a box must have, what it has, and the verdicts on it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.environment.compat import LaunchChoice

Status = Literal["ok", "warn", "fail", "skip", "unknown"]
Severity = Literal["error", "warning", "info"]
FixKind = Literal["env", "compose", "pip", "manual"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Fix(_Record):
    """What mends a finding: a command (`argv`), or in words where a person must act."""

    id: str
    kind: FixKind
    what: str = Field(description="In words, for people.")
    argv: tuple[str, ...] = ()
    reversible: bool = False
    undo: tuple[str, ...] = Field(default=(), description="Command that takes it back.")


class Evidence(_Record):
    """What a verdict rests on."""

    command: tuple[str, ...] = ()
    returncode: int | None = None
    values: dict[str, str] = Field(default_factory=dict)


class Verdict(_Record):
    """One check's finding; `severity` is what a failure of this check would mean."""

    id: str
    status: Status
    severity: Severity
    summary: str = Field(description="One line for people: what was found, or why not looked at.")
    evidence: Evidence = Evidence()
    fix: Fix | None = None


class BoxProfile(_Record):
    """What must hold on this box for a run; made by the flow from its configuration."""

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = Field(default=(), description="Ports that servers will listen on.")
    own_ports: tuple[int, ...] = Field(
        default=(),
        description="Ports that a living fleet of our own holds; it may hold the GPUs, too.",
    )
    needs_gpu: bool = False
    no_gpu_reason: str = Field(
        default="no server is launched here", description="Why GPU checks are skipped."
    )
    gpus: tuple[int, ...] = Field(default=(), description="Indices of the GPUs to be used.")
    spool_dir: Path
    spool_gib: float = Field(ge=0, description="Free disk that the journals need, in GiB.")
    files: tuple[Path, ...] = Field(default=(), description="Files and folders that must exist.")
    server_python: str | None = Field(
        default=None, description="Python of the servers' environment; empty: none is needed."
    )
    sglang_version: str | None = None
    launch: LaunchChoice | None = Field(
        default=None, description="Settings of the launch that can conflict with the card."
    )
    n_open_files: int = Field(
        default=1024, ge=64, description="File descriptors that the process needs."
    )


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


class GpuFacts(_Record):
    """One GPU; memory in MiB."""

    index: int
    name: str
    capability: tuple[int, int] | None
    memory_total_mib: int
    memory_used_mib: int
    pids: tuple[int, ...] = Field(default=(), description="Compute processes; empty in containers.")


class NvmlFacts(_Record):
    """What NVML says; `error` is the name of the error that ended the reading, else empty."""

    error: str = ""
    driver_version: str = ""
    gpus: tuple[GpuFacts, ...] = ()


class BoxFacts(_Record):
    """What was read of the box, once."""

    taken_ports: dict[int, str] = Field(description="Port -> who holds it.")
    spool: DiskFacts
    n_open_files_soft: int
    n_open_files_hard: int
    shm_gib: float | None
    missing_files: tuple[str, ...]
    server_python: PythonFacts | None
    nvml: NvmlFacts | None = Field(description="None: not asked, as no GPU is needed.")
    kernel_module: str = Field(default="", description="First line of the module's version file.")
    cuda_home: str | None = Field(default=None, description="CUDA_HOME or CUDA_PATH as set.")
    cuda_home_exists: bool = False
