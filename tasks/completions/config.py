"""What the user can set about generation: sampling, retries and budgets, quality gates."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SamplingConfig(BaseModel):
    """Sampling parameters, every one explicit: a server's defaults differ by route."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(default=1.0, ge=0, le=2, description="Sampling temperature.")
    top_p: float = Field(default=0.95, gt=0, le=1, description="Nucleus mass.")
    top_k: int = Field(default=20, ge=-1, le=100_000, description="Most likely tokens; -1: all.")
    min_p: float = Field(default=0.0, ge=0, le=1, description="Least probability, relative.")
    presence_penalty: float = Field(default=0.0, ge=-2, le=2, description="Presence penalty.")
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2, description="Frequency penalty.")
    repetition_penalty: float = Field(default=1.0, gt=0, le=2, description="Repetition penalty.")
    max_tokens: int = Field(
        default=6144, ge=1, le=1_048_576, description="Longest answer, in tokens."
    )
    n_samples: int = Field(default=1, ge=1, le=64, description="Conversations a prompt.")


class GenerationConfig(BaseModel):
    """How requests are sent, retried and given up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempts: int = Field(default=5, ge=1, le=50, description="Tries of one request.")
    backoff_seconds: float = Field(
        default=0.5, gt=0, le=60, description="First wait between tries; doubled, with jitter."
    )
    floor_tokens_per_second: float = Field(
        default=2.0,
        gt=0,
        le=10_000,
        description="Slowest stream believed alive: sets each request's deadline.",
    )
    queue_seconds: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Waiting in a server's queue that each request's deadline allows for.",
    )
    surplus: float = Field(
        default=0.1, ge=0, le=1, description="Requests kept queued at a server, a share of slots."
    )
    eject_after: int = Field(
        default=5, ge=1, le=100, description="Failures in a row that eject an endpoint."
    )
    return_after_seconds: float = Field(
        default=5.0, gt=0, le=600, description="When an ejected endpoint is tried again."
    )
    no_endpoint_seconds: float = Field(
        default=1800, gt=0, le=86_400, description="Longest wait with no endpoint admitted."
    )
    failure_budget: float = Field(
        default=0.05, ge=0, le=1, description="Share of failed conversations that fails a chunk."
    )
    run_failure_budget: float = Field(
        default=0.03,
        ge=0,
        le=1,
        description="Share of the run's conversations that may fail before the run ends.",
    )
    on_stop: Literal["drain", "abort"] = Field(
        default="drain",
        description="At SIGINT or SIGTERM: wait for the requests in flight, or abort them.",
    )
    drain_seconds: float = Field(
        default=30, gt=0, le=3600, description="Longest wait for them; a second signal ends it."
    )
    fsync_every: int = Field(default=64, ge=1, le=10_000, description="Records an fsync.")
    spool_gib: float = Field(
        default=32,
        gt=0,
        le=100_000,
        description="Most that journals and unsent parts may hold of the local disk, in GiB: where "
        "the store is slow, the run slows.",
    )


Gate = Literal[
    "empty_answer", "empty_thinking", "truncation", "repetition", "tiny_mask", "duplicate"
]


class GatesConfig(BaseModel):
    """Shares of bad answers past which the run stops, judged before a part is published."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    empty_answer: float = Field(default=0.02, ge=0, le=1, description="Answers without content.")
    empty_thinking: float = Field(default=0.05, ge=0, le=1, description="Thinking left empty.")
    truncation: float = Field(default=0.30, ge=0, le=1, description="Answers cut at max_tokens.")
    repetition: float = Field(default=0.02, ge=0, le=1, description="Answers caught in a loop.")
    tiny_mask: float = Field(default=0.01, ge=0, le=1, description="Answers of a few tokens.")
    duplicate: float = Field(default=0.05, ge=0, le=1, description="Answers equal to others.")
    tiny_mask_tokens: int = Field(default=8, ge=1, le=1000, description="What counts as tiny.")
    min_rows: int = Field(
        default=50, ge=1, le=100_000, description="Conversations before a gate may judge."
    )
    window: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="Latest conversations of the run, over all chunks, that are judged together.",
    )
    pause_after_canary: bool = Field(
        default=False, description="End the run after the canary, for a person to look at it."
    )
    accept: tuple[Gate, ...] = Field(
        default=(), description="Gates whose verdict is accepted: measured, not enforced."
    )
    redo: tuple[Gate, ...] = Field(
        default=(),
        description="Gates that stopped a run whose servers were mended since: journals past "
        "their thresholds are set aside (kept), and what they flag in published parts is asked "
        "for anew.",
    )

    @model_validator(mode="after")
    def _one_exit_a_gate(self) -> Self:
        both = sorted({*self.accept} & {*self.redo})
        if both:
            raise ValueError(f"{', '.join(both)}: a gate is accepted or redone, not both")
        return self
