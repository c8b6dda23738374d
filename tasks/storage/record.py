"""The records of this room: ObjectStat, what a part says of itself, Request, Manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PART_SCHEMA = 1
MANIFEST_SCHEMA = 1
REQUEST_SCHEMA = 1
RETRY_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """One stored object; `sha256` and `modified_at` (a Unix time) only where the store has them."""

    key: str
    n_bytes: int
    sha256: str | None = None
    modified_at: float | None = None


class PartHeader(BaseModel):
    """First line of a part: which plan and input its rows answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = PART_SCHEMA
    plan_sha: str
    chunk_id: int = Field(description="The chunk, or which part of the retry.")
    input_sha256: str
    retry: int = Field(default=0, description="The retry that it belongs to; 0: a chunk's part.")


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
    server_slots: dict[str, int] = Field(
        default={}, description="Requests at once by endpoint, where the part's writer knew it."
    )
    watt_hours: float | None = Field(
        default=None,
        description="Used by the servers' GPUs since the part before; None: not measured.",
    )
    rows_sha256: str = Field(description="sha256 over the row lines, newline included.")


class PartReceipt(BaseModel):
    """What a published part is known by."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    sha256: str
    n_bytes: int
    header: PartHeader
    footer: PartFooter


class RetriedConversation(BaseModel):
    """One conversation that a retry asks for anew, and the outcome that the answer stands in for.

    Its counts are what the superseded outcome brought into the footer of its part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt_id: str
    sample: int
    chunk_id: int
    part_key: str = Field(description="Key of the part that holds the superseded outcome.")
    part_sha256: str
    status: Literal["completed", "truncated", "partial", "failed"]
    failure: str | None = Field(description="Kind of its failure.")
    flags: tuple[str, ...] = Field(description="Gates that flagged it.")
    n_generations: int
    n_prompt_tokens: int
    n_output_tokens: int


class RetryList(BaseModel):
    """`_run/retry-NN.json`, written before the first request of a retry: what it asks for anew."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = RETRY_SCHEMA
    retry: int
    plan_sha: str
    reason: Literal["failures", "redo"]
    gates: tuple[str, ...] = Field(description="Gates whose flagged conversations it holds.")
    conversations: tuple[RetriedConversation, ...] = Field(description="In the plan's order.")


class Superseded(BaseModel):
    """What of one part no longer counts, because a retry stands in for it: as a footer counts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: int = 0
    n_completed: int = 0
    n_truncated: int = 0
    n_partial: int = 0
    n_failed: int = 0
    n_generations: int = 0
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0
    failures: dict[str, int] = {}
    gates: dict[str, int] = {}


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


class ObjectReceipt(BaseModel):
    """Any other object of a run: the request, the plan, what was extracted, prompts, pages."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    sha256: str
    n_bytes: int


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
    retries: tuple[PartReceipt, ...] = Field(
        default=(), description="Parts of retries, in order: their rows stand in for earlier ones."
    )
    retry_lists: dict[str, str] = Field(
        default={}, description="Key of each retry's list to its sha256."
    )
    superseded: dict[str, Superseded] = Field(
        default={}, description="Key of a part to what of it no longer counts."
    )
    samples: tuple[dict[str, Any], ...] = Field(
        description="One SamplesReceipt a data part, of chunks and of retries."
    )
    shards: tuple[ShardReceipt, ...]
    counts: dict[str, int]
    composition: dict[str, Any]
    merge: dict[str, Any] = Field(
        default_factory=dict, description="The merge's settings: rows a shard, seed."
    )
    base: dict[str, Any] | None = Field(
        default=None,
        description="The base dataset, where its rows belong to this one and lie elsewhere: "
        "place and columns, sha256, n_rows.",
    )
    objects: tuple[ObjectReceipt, ...] = Field(
        default=(), description="Every other object that belongs to the run."
    )
    request: dict[str, Any] = Field(
        default_factory=dict, description="The request, so that it can be restored."
    )
    tokens: dict[str, Any] = Field(
        default_factory=dict, description="The settings that the samples were made under."
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="What else was set, and may be set otherwise by a rerun: the name, servers, "
        "gates, budgets.",
    )
    stored_as: dict[str, str] = Field(
        default_factory=dict,
        description="Where an object lies, on a store where every run writes keys of its own.",
    )
    report_key: str | None
    versions: dict[str, str] = Field(description="Versions of draftmill and what shaped the data.")
    self_sha256: str = Field(
        default="", description="Hash of the manifest's canonical JSON without this field."
    )
