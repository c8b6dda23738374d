"""The records of this room: ObjectStat, what a part says of itself, Request, Manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

PART_SCHEMA = 1
MANIFEST_SCHEMA = 1
REQUEST_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """One stored object; `sha256` is None where the store does not keep it."""

    key: str
    n_bytes: int
    sha256: str | None = None


class PartHeader(BaseModel):
    """First line of a part: which plan and input its rows answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = PART_SCHEMA
    plan_sha: str
    chunk_id: int
    input_sha256: str


class PartFooter(BaseModel):
    """Last line of a part: all that its receipt says of the rows.

    n_rows = n_completed + n_truncated + n_partial + n_failed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: int
    n_completed: int
    n_truncated: int
    n_partial: int
    n_failed: int
    n_generations: int
    n_prompt_tokens: int
    n_output_tokens: int
    failures: dict[str, int] = Field(description="Failed and partial conversations, by kind.")
    gates: dict[str, int] = Field(description="Flagged conversations, by gate.")
    server_versions: dict[str, str] = Field(description="Version by endpoint.")
    rows_sha256: str = Field(description="sha256 over the row lines, newline included.")


class PartReceipt(BaseModel):
    """What a published part is known by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    sha256: str
    n_bytes: int
    header: PartHeader
    footer: PartFooter


class Request(BaseModel):
    """`_run/request.json`, written first: what was asked, and what it resolved to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = REQUEST_SCHEMA
    asked: dict[str, Any] = Field(description="The parts of the configuration that decide answers.")
    asked_sha: str
    resolved: dict[str, Any] = Field(description="Sources to commits, the base dataset to a sha.")


class ShardReceipt(BaseModel):
    """One file of the merged dataset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    sha256: str
    n_bytes: int
    n_rows: int


class Manifest(BaseModel):
    """`_manifest/rNNNN.json`, written last: its existence means that the dataset is whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = MANIFEST_SCHEMA
    revision: int
    created_at: str = Field(description="UTC, ISO 8601.")
    plan_sha: str
    plan: dict[str, Any]
    parts: tuple[PartReceipt, ...] = Field(description="The data parts that count, by chunk.")
    supersedes: dict[str, str] = Field(description="Key of a part to the key that replaces it.")
    samples: tuple[dict[str, Any], ...] = Field(description="One SamplesReceipt a data part.")
    shards: tuple[ShardReceipt, ...]
    counts: dict[str, int]
    composition: dict[str, Any]
    merge: dict[str, Any] = Field(
        default_factory=dict, description="The merge's settings: rows a shard, seed."
    )
    report_key: str | None
    versions: dict[str, str] = Field(description="Versions of draftmill and what shaped the data.")
