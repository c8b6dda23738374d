"""The records of this room: Prompt, Rejection, Chunk, Plan.

A Prompt is one conversation to be answered. Its messages keep the recorded assistant and tool
turns: the assistant's are regenerated turn by turn, the tools' results are replayed. Messages and
tools are JSON strings in files, because Arrow would unify their fields and inject nulls.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import msgspec
import orjson
from pydantic import BaseModel, ConfigDict, Field

# Raised by hand whenever extraction would give other prompts for the same rows.
PROMPT_CODE_VERSION = 2
PLAN_SCHEMA = 1

Message = dict[str, Any]
"""OpenAI form: role, content, and tool_calls (arguments a dict) / reasoning_content / name."""

RejectionKind = Literal[
    "not_an_object",
    "row_too_large",
    "path_missing",
    "not_text",
    "unknown_role",
    "empty_turn",
    "no_user_turn",
    "system_not_first",
    "consecutive_user_turns",
    "malformed_tools",
    "malformed_tool_call",
    "image",
    "filtered",
    "language",
    "too_short",
    "too_long",
    "not_renderable",
    "special_token",
    "pattern",
    "benchmark",
    "duplicate",
    "near_duplicate",
    "seen",
    "in_base",
]


class SourceRef(msgspec.Struct, frozen=True, gc=False):
    """Where a prompt comes from: `row` counts from 0 in the split or file at `revision`."""

    key: str
    dataset: str
    config: str | None
    split: str
    revision: str
    row: int


class Prompt(msgspec.Struct, frozen=True, gc=False):
    """One conversation to answer.

    Attributes:
        id: Hash of the normalised messages and tools (`hash_prompt`).
        messages: OpenAI form, ending in a user or tool turn.
        tools: JSON-schema tools as one JSON string, or None.
        domain: Domain in the mix.
        domain_rule: Which rule chose the domain (label, source, rule name).
        source: The row that it came from.
        prompt_token_ids: Ids of the first turn to generate, rendered once. Shape [n_tokens].
    """

    id: str
    messages: list[Message]
    tools: str | None
    domain: str
    domain_rule: str
    source: SourceRef
    prompt_token_ids: list[int]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that gave no prompt, and why; `detail` never holds the row's text."""

    kind: RejectionKind
    detail: str
    source: SourceRef


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """What a reader yields in place of a row that it cannot read; it becomes a Rejection."""

    kind: RejectionKind
    detail: str


@dataclass(frozen=True, slots=True)
class NormalizedRow:
    """A row as a conversation, before filters, id and rendering.

    Attributes:
        messages: OpenAI form, ending in a user or tool turn.
        tools: JSON-schema tools as one JSON string, or None.
        labels: The row's own labels, in order.
        language: The row's own language label as a lower-case code, or None.
        own_id: The row's own id where it looks like one, or None.
        reference: The recorded last answer, kept aside; or None.
    """

    messages: list[Message]
    tools: str | None
    labels: tuple[str, ...]
    language: str | None
    own_id: str | None
    reference: str | None = None


class Refusal(NamedTuple):
    """Why a conversation becomes no prompt; `detail` never holds its text."""

    kind: RejectionKind
    detail: str
    benchmark: str | None = None


class RowRefused(ValueError):
    """Raised inside this room by what cannot use a row; it becomes a Rejection."""

    def __init__(self, kind: RejectionKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class ResolvedSource(BaseModel):
    """A source pinned: what `resolved` in request.json holds of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    dataset: str = Field(description="Hub dataset, or the file's name.")
    config: str | None
    split: str
    revision: str = Field(description="Commit of a Hub dataset; sha256 of a local file.")
    licence: str


class ExtractReceipt(BaseModel):
    """What extracting one source gave; n_rows = n_prompts + n_rejected + n_not_sampled."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    revision: str
    n_rows: int
    n_prompts: int
    n_rejected: int
    n_not_sampled: int
    rejections: dict[str, int]
    examples: dict[str, tuple[str, ...]] = Field(
        description="Of each kind of rejection three rows: their own ids, else their numbers."
    )
    benchmarks: dict[str, int] = Field(description="Prompts rejected for each benchmark.")
    part_keys: tuple[str, ...]
    rejections_key: str
    seen_key: str
    sha256: str = Field(description="Hash over the prompts, of records and not of file bytes.")


class Chunk(BaseModel):
    """A unit of work for Prefect: up to 1,000 conversations; chunk 0 is the canary."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: int
    n_prompts: int
    prompts_key: str
    input_sha256: str = Field(description="Hash of the chunk's prompt records, in order.")


class MixShare(BaseModel):
    """One domain in the mix; rows, or expected supervised tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    domain: str
    target: float
    base: float = Field(description="In the base dataset.")
    available: float = Field(description="In the extracted prompts.")
    taken: float = Field(description="Of these taken.")
    before: float = Field(description="Share in the base dataset.")
    untouched: float = Field(description="Share if all that is available were taken.")
    after: float = Field(description="Share with what is taken.")


class MixCap(BaseModel):
    """What one source gives to one domain, in prompts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    domain: str
    n_available: int
    n_taken: int


class MixSolution(BaseModel):
    """The caps that bring the dataset to its shares, and what could not be reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str
    shares: tuple[MixShare, ...]
    caps: tuple[MixCap, ...]
    unreachable: tuple[str, ...] = Field(description="One sentence a domain: what, and why.")


class Plan(BaseModel):
    """All that decides the answers. Endpoints, gates and token policy are not in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    schema_version: int = PLAN_SCHEMA
    prompt_code_version: int = PROMPT_CODE_VERSION
    request_sha: str
    model: str
    model_revision: str | None
    dtype: str
    quantization: str | None
    tokenizer_sha256: str
    chat_template_sha256: str
    context_length: int
    max_tokens: int
    thinking: bool
    reasoning_parser: str | None
    tool_call_parser: str | None
    sampling: dict[str, float | int]
    n_samples: int
    extracted: tuple[ExtractReceipt, ...]
    n_duplicates: int = Field(
        description="Prompts dropped as duplicates across sources, near ones included."
    )
    n_near_duplicates: int = Field(default=0, description="Of these, the near ones.")
    n_outside_mix: int = Field(default=0, description="Prompts left out by the mix.")
    mix: MixSolution | None = Field(default=None, description="How the mix was solved.")
    chunks: tuple[Chunk, ...]

    @cached_property
    def sha(self) -> str:
        """Identity of the plan: sha256 of its canonical JSON.

        Each chunk asks for it several times, and it is the longer the more chunks there are.
        """
        return canonical_sha256(self.model_dump(mode="json"))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy the fields; a changed plan has an identity of its own."""
        copy = super().model_copy(update=update, deep=deep)
        copy.__dict__.pop("sha", None)
        return copy

    @property
    def n_prompts(self) -> int:
        """Prompts over all chunks."""
        return sum(chunk.n_prompts for chunk in self.chunks)


def canonical_sha256(value: Any) -> str:
    """Hash any JSON value: sorted keys, no spaces, UTF-8."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def hash_prompt(messages: list[Message], tools: str | None) -> str:
    """Give a prompt its id: 32 hex digits over what decides its answers.

    That is the tools, the roles, the texts of system, user and tool turns (in NFC, without outer
    white space) and the names of recorded calls. Recorded assistant text is not in it: it is
    generated anew, so that rows which differ only there are one prompt.
    """
    turns: list[Any] = []
    for turn in messages:
        role = turn["role"]
        if role == "assistant":
            calls = turn.get("tool_calls")
            names = [call["function"]["name"] for call in calls] if calls else []
            turns.append([role, names])
        else:
            text: str = turn["content"].strip()
            turns.append([role, text if text.isascii() else unicodedata.normalize("NFC", text)])
    return hashlib.sha256(orjson.dumps([turns, tools])).hexdigest()[:32]
