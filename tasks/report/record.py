"""The records of this room: what a report and a canary's preview show.

They hold figures and short excerpts only, in plain types, so that any stage can fill them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.report.composition import Composition


class Span(BaseModel):
    """Neighbouring tokens with one mask; `n_hidden` of them are left out before `text`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    supervised: bool
    n_hidden: int = 0


class ShownSample(BaseModel):
    """A training sample as it is shown: its tokens as text, told apart by their mask."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    source: str
    domain: str
    finish_reason: str
    n_tokens: int
    n_supervised_tokens: int
    spans: tuple[Span, ...]


class GateFigure(BaseModel):
    """One quality gate: how many answers it flagged, and the share past which it stops the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    n_flagged: int
    n_judged: int
    threshold: float
    accepted: bool = Field(default=False, description="Measured, but not enforced.")


class EndpointFigure(BaseModel):
    """One server: its version, and how many requests it answered (None if not counted)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str
    server_version: str
    n_requests: int | None = None


class SpeedFigure(BaseModel):
    """A figure of speed or size, as it was estimated and as it was measured; None: not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    unit: str
    estimated: float | None
    measured: float | None


class ReportFigures(BaseModel):
    """All that the report of one dataset revision shows.

    `counts` has the names of the manifest's counts (n_source_rows, n_prompts, n_conversations,
    n_failed, n_dataset_rows, ...); one that is missing is left out of the page.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Name of the run.")
    uri: str = Field(description="Prefix of the run's store.")
    revision: int = Field(description="Revision of the dataset.")
    created_at: str = Field(description="UTC, ISO 8601.")
    simulated: bool = Field(description="Whether the answers are invented by simulated servers.")
    counts: dict[str, int]
    before: Composition
    after: Composition
    finish_reasons: dict[str, int] = {}
    failures: dict[str, int] = Field(default={}, description="Conversations, by kind of failure.")
    rejections: dict[str, int] = Field(default={}, description="Source rows, by why.")
    dropped: dict[str, int] = Field(default={}, description="Generations left out, by why.")
    gates: tuple[GateFigure, ...] = ()
    endpoints: tuple[EndpointFigure, ...] = ()
    speed: tuple[SpeedFigure, ...] = Field(default=(), description="Estimated and measured.")
    samples: tuple[ShownSample, ...] = ()
    settings: dict[str, Any] = Field(default={}, description="The request as asked.")
    lineage: dict[str, str] = Field(default={}, description="What it was made from, by name.")


class Band(BaseModel):
    """A figure that is not known yet: what it may be at least, most likely, and at most."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    low: float
    middle: float
    high: float


class Projection(BaseModel):
    """What the whole run may take, judged by its canary."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_conversations: int
    output_tokens: Band
    hours: Band | None = Field(description="With the servers that were there; None: not known.")
    gpu_hours: Band | None
    basis: str = Field(description="What it rests on.")


class CanaryFigures(BaseModel):
    """All that the preview of the canary shows, before the run goes on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Name of the run.")
    uri: str = Field(description="Prefix of the run's store.")
    created_at: str = Field(description="UTC, ISO 8601.")
    simulated: bool = Field(description="Whether the answers are invented by simulated servers.")
    counts: dict[str, int]
    finish_reasons: dict[str, int] = {}
    failures: dict[str, int] = Field(default={}, description="Conversations, by kind of failure.")
    gates: tuple[GateFigure, ...] = ()
    endpoints: tuple[EndpointFigure, ...] = ()
    samples: tuple[ShownSample, ...] = Field(
        default=(), description="Of 20 conversations of every source."
    )
    projection: Projection | None = None
    lineage: dict[str, str] = {}
