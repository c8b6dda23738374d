"""The records of this room: Endpoint, a server that was probed and admitted; Refusal, one not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Capability = Literal["chat", "native", "none"]

SIMULATED = "+simulated"
"""Ends the version of a server whose answers are invented, in every receipt of what it answered."""


class Endpoint(BaseModel):
    """A server as its probes found it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str = Field(description="Without a trailing slash.")
    slots: int = Field(ge=1, description="Requests that it runs at once.")
    server_version: str
    model: str = Field(description="Model path or name that it says it serves.")
    context_length: int | None
    capability: Capability = Field(
        description="How exact ids are had: chat completions, /generate, or not at all."
    )


class RenderingProbe(BaseModel):
    """A conversation and its prompt as this run renders it: a server must render it alike."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: list[dict[str, Any]]
    prompt_token_ids: list[int] = Field(min_length=1, description="Shape [n_prompt_tokens].")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server that was probed and not admitted; `retryable`: it may be only starting."""

    base_url: str
    reason: str
    retryable: bool = False
