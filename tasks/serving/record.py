"""The record of this room: Endpoint, a server that was probed and admitted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Capability = Literal["chat", "native", "none"]


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
