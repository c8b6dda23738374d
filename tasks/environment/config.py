"""What the user can set about the doctor."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class EnvironmentConfig(BaseModel):
    """What the box must have before anything is started."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spool_gib: float = Field(
        default=1.0, ge=0, le=100_000, description="Free disk that the journals need, in GiB."
    )
    cache_gib: float = Field(
        default=10.0,
        ge=0,
        le=100_000,
        description="Free disk that downloaded datasets need, in GiB; local files need none.",
    )
    capability: str | None = Field(
        default=None,
        pattern=r"^\d{1,2}\.\d$",
        description="Compute capability of the cards (12.0 for SM120) where the driver, or the box "
        "that is prepared, cannot tell it.",
    )
