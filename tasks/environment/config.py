"""What the user can set about the doctor."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EnvironmentConfig(BaseModel):
    """What the box must have before anything is started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spool_gib: float = Field(
        default=1.0, ge=0, le=100_000, description="Free disk that the journals need, in GiB."
    )
