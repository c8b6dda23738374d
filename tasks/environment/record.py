"""The records of this room that others use: what a box must have, and the verdicts on it.

Enters: a BoxProfile, made by the flow from its configuration. Leaves: Verdicts, each with its
evidence and what mends it. What was read of the box is in box_facts.py.
"""

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
        default=(), description="Ports that a living fleet of our own holds."
    )
    own_pids: tuple[int, ...] = Field(
        default=(), description="Processes of that fleet: memory they hold is ours."
    )
    needs_gpu: bool = False
    no_gpu_reason: str = Field(
        default="no server is launched here", description="Why GPU checks are skipped."
    )
    gpus: tuple[int, ...] = Field(default=(), description="Indices of the GPUs to be used.")
    capability: tuple[int, int] | None = Field(
        default=None, description="Compute capability that the configuration is made for."
    )
    weights_gib: float | None = Field(
        default=None, description="The model's weights; empty: as its files say."
    )
    kv_gib: float = Field(default=0.0, description="Least KV cache a card, in GiB.")
    spool_dir: Path
    spool_gib: float = Field(ge=0, description="Free disk that the journals need, in GiB.")
    files: tuple[Path, ...] = Field(default=(), description="Files and folders that must exist.")
    model_path: str | None = Field(
        default=None, description="Folder or Hub repository of the model; empty: not served here."
    )
    model_revision: str | None = None
    server_python: str | None = Field(
        default=None, description="Python of the servers' environment; empty: none is needed."
    )
    sglang_version: str | None = None
    cuda_dir: Path | None = Field(
        default=None, description="Folder of the private CUDA homes; empty: none is composed."
    )
    repair_argv: tuple[str, ...] = Field(
        default=(), description="Command that applies what can be repaired; `--undo` takes it back."
    )
    launch: LaunchChoice | None = Field(
        default=None, description="Settings of the launch that can conflict with the card."
    )
    mtp_measured: str = Field(
        default="", description="What the tuner measured of multi-token prediction, if it did."
    )
    n_open_files: int = Field(
        default=1024, ge=64, description="File descriptors that the process needs."
    )


class AppliedFix(_Record):
    """What became of one repair: `verdicts` are those of its checks afterwards."""

    fix: str
    status: Literal["applied", "ineffective", "refused", "undone", "nothing"]
    what: str
    checks: dict[str, Status] = Field(default_factory=dict)
