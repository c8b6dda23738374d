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
    flags: tuple[str, ...] = Field(default=(), description="Gates that flag its conversation.")


class GateFigure(BaseModel):
    """One quality gate: how many answers it flagged, and the share past which it stops the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    n_flagged: int
    n_judged: int
    threshold: float
    accepted: bool = Field(default=False, description="Measured, but not enforced.")


class EndpointFigure(BaseModel):
    """One server, and what it did; None: not known, from parts of old or of a server since gone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str
    server_version: str
    slots: int | None = Field(default=None, description="Requests at once.")
    n_requests: int | None = Field(default=None, description="Answered.")
    n_output_tokens: int = 0
    occupancy: float | None = Field(default=None, description="Share of its slots in use.")
    latency_p50: float | None = Field(default=None, description="Seconds.")
    latency_p99: float | None = Field(default=None, description="Seconds.")
    tokens_per_second: tuple[float, ...] = Field(
        default=(), description="Over time. Shape [n_steps]."
    )


class Spread(BaseModel):
    """How values lie: half of them are at most p50, 99 of 100 at most p99."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    p50: float
    p90: float
    p99: float
    largest: float


class StretchFigure(BaseModel):
    """A time in which servers were at work; several where the run was taken up again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    began_at: float = Field(description="Unix seconds.")
    seconds: float
    n_servers: int


class FailureExample(BaseModel):
    """One conversation that failed or broke off; `message` never holds prompt text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    conversation: str
    kind: str
    message: str
    n_attempts: int


class GenerationFigures(BaseModel):
    """What generating took: every answer that was paid for, those replaced by retries included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_answers: int
    n_timed: int = Field(description="Answers that say when they came; parts of old do not.")
    n_prompt_tokens: int
    n_output_tokens: int
    n_reasoning_tokens: int
    n_retried: int = Field(description="Answers that took more than one request.")
    retries: dict[str, int] = Field(description="Requests sent again, by why.")
    answer_lengths: tuple[int, ...] = Field(description="Answers, by the bins of composition.")
    latency: Spread | None = Field(description="Seconds an answer.")
    stream: Spread | None = Field(description="Tokens a second of one answer.")
    stretches: tuple[StretchFigure, ...] = ()
    step_seconds: float = Field(description="Of work, each figure over time stands for.")
    in_flight: tuple[float, ...] = Field(default=(), description="Requests. Shape [n_steps].")
    occupancy: float | None = Field(default=None, description="Of all servers' slots.")
    endpoints: tuple[EndpointFigure, ...] = ()
    examples: tuple[FailureExample, ...] = ()

    @property
    def seconds(self) -> float:
        """How long servers were at work."""
        return sum(stretch.seconds for stretch in self.stretches)

    @property
    def server_seconds(self) -> float:
        """The same, each server counted."""
        return sum(stretch.seconds * stretch.n_servers for stretch in self.stretches)


class SpeedFigure(BaseModel):
    """A figure of speed or size, as it was estimated and as it was measured; None: not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    unit: str
    estimated: float | None
    measured: float | None


class CostFigures(BaseModel):
    """What generating cost, and could have cost at best; None: not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gpus_a_server: int | None = None
    bound_tokens_per_second: float | None = Field(
        default=None, description="Roofline of one full server, at the lengths of this run."
    )
    watt_hours: float | None = Field(default=None, description="As the GPUs counted them.")


class VerificationFigure(BaseModel):
    """What holding the store against its manifest gave."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    n_objects: int
    share_read: float = Field(description="Of the objects, read in full.")
    problems: tuple[str, ...] = ()
    verified_at: str = Field(description="UTC, ISO 8601.")


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
    n_asked: int = Field(default=0, description="Conversations that the plan asks for.")
    before: Composition
    after: Composition
    finish_reasons: dict[str, int] = {}
    failures: dict[str, int] = Field(default={}, description="Conversations, by kind of failure.")
    rejections: dict[str, int] = Field(default={}, description="Source rows, by why.")
    dropped: dict[str, int] = Field(default={}, description="Generations left out, by why.")
    gates: tuple[GateFigure, ...] = ()
    generation: GenerationFigures | None = None
    cost: CostFigures = CostFigures()
    speed: tuple[SpeedFigure, ...] = Field(default=(), description="Estimated and measured.")
    verification: VerificationFigure | None = None
    samples: tuple[ShownSample, ...] = Field(default=(), description="Flagged ones first.")
    settings: dict[str, Any] = Field(default={}, description="Exactly as set, by what they are of.")
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
    generation: GenerationFigures | None = None
    samples: tuple[ShownSample, ...] = Field(
        default=(), description="Of 20 conversations of every source."
    )
    projection: Projection | None = None
    lineage: dict[str, str] = {}
