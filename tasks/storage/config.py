"""What the user can set about the store. Secrets come from a block or the environment."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class S3Config(BaseModel):
    """How to reach an S3 endpoint; used when the store's uri begins with s3://."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint_url: str | None = Field(
        default=None, description="Endpoint of an S3-compatible server; empty for AWS."
    )
    region: str | None = Field(default=None, description="Region; empty for the machine's own.")
    addressing_style: Literal["auto", "path", "virtual"] = Field(
        default="auto", description="How the bucket is addressed; most S3-compatible servers: path."
    )
    credentials_block: str | None = Field(
        default=None,
        description="Prefect block with the credentials, as `aws-credentials/NAME`, "
        "`minio-credentials/NAME` or `s3-bucket/NAME`; empty for the usual AWS chain "
        "(environment, profile, role).",
    )
    run_unique_keys: bool = Field(
        default=False,
        description="For a server that ignores `If-None-Match: *` and is therefore refused: write "
        "every object to a key of the run's own, and let the manifest choose. No effect elsewhere.",
    )
    connect_timeout_seconds: float = Field(default=10, gt=0, le=120, description="Connect limit.")
    read_timeout_seconds: float = Field(default=60, gt=0, le=900, description="Read limit.")
    max_connections: int = Field(default=16, ge=1, le=256, description="Transfers at once.")


class StoreConfig(BaseModel):
    """Where a run's data lands; nothing there is ever overwritten."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str = Field(
        description="The run's own prefix: s3://bucket/prefix or file:///folder.",
        pattern=r"^(s3|file)://.+",
    )
    protected: tuple[str, ...] = Field(
        default=("completions/",),
        description="Prefixes never to be written under: relative to the bucket (or to the folder "
        "that holds a file:// store), or whole uris.",
    )
    results_uri: str | None = Field(
        default=None,
        description="Prefix of Prefect's own results, outside the run's; "
        "empty: the run's prefix with `-prefect-results` appended.",
    )
    s3: S3Config = Field(default_factory=S3Config, description="S3 connection settings.")
