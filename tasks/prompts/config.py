"""What the user can set about sources: where rows come from, how they map, how many are taken."""

from __future__ import annotations

from string import Formatter
from typing import Literal, Self

import re2
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_MOST_PATTERN_CHARS = 10_000


class RowMapping(BaseModel):
    """How a row of a source becomes messages. Paths are dotted: `instances.0.input`.

    Exactly one of `messages` (a list of role/content turns), `turns` (a list of user texts) and
    `prompt` (one user text) is set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    messages: str | None = Field(default=None, description="Path of the list of messages.")
    turns: str | None = Field(default=None, description="Path of the list of user turns (texts).")
    prompt: str | None = Field(default=None, description="Path of the user's text.")
    input: str | None = Field(default=None, description="Path of an optional second text.")
    join: str = Field(
        default="{prompt}\n\n{input}", description="How prompt and a non-empty input are joined."
    )
    system: str | None = Field(default=None, description="Path of a system text.")
    role_key: str = Field(default="role", description="Key of a message's role.")
    content_key: str = Field(default="content", description="Key of a message's text.")
    role_map: dict[str, Literal["system", "user", "assistant", "tool"]] = Field(
        default_factory=dict,
        description="The dataset's role names and ours, beside the usual ones.",
    )
    tools: str | None = Field(
        default=None, description="Path of the tools: a list, a JSON string, or null."
    )
    tools_in_system: bool = Field(
        default=False,
        description="Take a <tools> list out of the system text (the Hermes manner).",
    )
    reference: str | None = Field(
        default=None,
        description="Path of a recorded answer, kept aside; empty: the last of messages is.",
    )
    id: str | None = Field(default=None, description="Path of the row's own id.")
    label: str | None = Field(default=None, description="Path of the row's label or labels.")
    language: str | None = Field(default=None, description="Path of the row's language label.")
    filter: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="Keep rows whose value at a path is one of these."
    )

    @field_validator("join")
    @classmethod
    def _join_names_both(cls, join: str) -> str:
        parts = list(Formatter().parse(join))
        if any(spec or conversion for _, _, spec, conversion in parts) or sorted(
            name for _, name, _, _ in parts if name is not None
        ) != ["input", "prompt"]:
            raise ValueError("join must hold {prompt} and {input} once each, and no other field")
        return join

    @model_validator(mode="after")
    def _one_text(self) -> Self:
        if sum(value is not None for value in (self.messages, self.turns, self.prompt)) != 1:
            raise ValueError("set exactly one of messages, turns and prompt")
        return self


class SourceConfig(BaseModel):
    """One source of prompts: a Hub dataset or local files, and how its rows are read.

    `use` takes the entry of the registry (`sources.yaml`) of that name; what is set here wins.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: str | None = Field(default=None, description="Entry of the registry to start from.")
    dataset: str | None = Field(
        default=None, min_length=1, description="Hub dataset, as owner/name."
    )
    config: str | None = Field(default=None, description="Configuration of the Hub dataset.")
    split: str = Field(default="train", description="Split of the Hub dataset.")
    revision: str | None = Field(default=None, description="Commit or tag; empty: the newest.")
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A .jsonl (.gz, .zst) or .parquet file, instead of a dataset: local, or on "
        "the store's S3 endpoint as s3://BUCKET/KEY.",
    )
    mapping: RowMapping | None = Field(default=None, description="How a row becomes messages.")
    domain: str | None = Field(
        default=None,
        description="Domain of rows whose label names none; empty: rules over the text.",
    )
    domain_labels: dict[str, str] = Field(
        default_factory=dict, description="Domains by the row's label."
    )
    languages: tuple[str, ...] = Field(
        default=(),
        description="Languages kept, as ISO 639-1 codes; empty: all. A row's own label decides, "
        "and where it has none the text.",
    )
    near_duplicates: float | None = Field(
        default=0.8,
        gt=0,
        le=1,
        description="Jaccard similarity of word 3-grams from which a prompt is a near-duplicate "
        "of another and dropped; empty: none is.",
    )
    quota: int | None = Field(default=None, ge=1, description="Most prompts to take; empty: all.")
    licence: str = Field(default="unknown", description="Licence of the rows, for the record.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.dataset and self.path and not self.use:
            raise ValueError("set one of dataset and path, not both")
        if not self.use and not (self.dataset or self.path):
            raise ValueError("set dataset (a Hub dataset) or path (a local file), or use")
        if not self.use and self.mapping is None:
            raise ValueError("set mapping (how a row becomes messages), or use")
        return self


class MixConfig(BaseModel):
    """Shares of the domains that the merged dataset shall have, the base dataset included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    targets: dict[str, float] = Field(
        min_length=1,
        description="Share of each domain, 0 to 1; what they leave is for all others together.",
    )
    unit: Literal["rows", "tokens"] = Field(
        default="rows", description="Shares of rows, or of expected supervised tokens."
    )
    expected_tokens: dict[str, int] = Field(
        default_factory=dict,
        description="Supervised tokens of a new answer by domain, where unit is tokens; a domain "
        "that is left out: the base dataset's mean.",
    )

    @field_validator("targets")
    @classmethod
    def _shares_fit(cls, targets: dict[str, float]) -> dict[str, float]:
        if any(not 0 <= share <= 1 for share in targets.values()) or sum(targets.values()) > 1.001:
            raise ValueError("shares lie between 0 and 1 and sum to 1 at most")
        return targets

    @field_validator("expected_tokens")
    @classmethod
    def _lengths_are_positive(cls, lengths: dict[str, int]) -> dict[str, int]:
        if any(n < 1 for n in lengths.values()):
            raise ValueError("expected tokens are 1 or more")
        return lengths


class BenchmarkConfig(BaseModel):
    """A benchmark that prompts must not repeat."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1, description="Local .jsonl (.gz, .zst) or .parquet file.")
    text: str = Field(description="Path of the benchmark's question in a row.")


class ExtractionConfig(BaseModel):
    """How prompts are filtered, sampled and cut into chunks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(default=0, ge=0, description="Seed of the sampling and of the order.")
    chunk_size: int = Field(default=1000, ge=1, le=10_000, description="Conversations a chunk.")
    canary_size: int = Field(
        default=256, ge=1, le=10_000, description="Conversations of chunk 0, from all sources."
    )
    min_answer_tokens: int = Field(
        default=1024, ge=1, description="Tokens that a prompt must leave for the answer."
    )
    min_chars: int = Field(default=1, ge=1, description="Shortest last user turn, in characters.")
    max_row_bytes: int = Field(
        default=1_000_000, ge=1_000, description="Largest row read; a larger one is a rejection."
    )
    exclude: dict[str, str] = Field(
        default_factory=dict,
        description="Patterns (RE2) by name; a prompt with a turn that one matches is rejected.",
    )
    benchmarks: dict[str, BenchmarkConfig] = Field(
        default_factory=dict, description="Benchmarks by name; a prompt out of one is rejected."
    )
    ngram_words: int = Field(
        default=13,
        ge=8,
        le=13,
        description="Words in a row that a prompt and a benchmark's question may not share.",
    )
    mix: MixConfig | None = Field(
        default=None,
        title="Mix",
        description="Shares of the domains; empty: whatever the sources give.",
    )
    earlier: tuple[str, ...] = Field(
        default=(),
        description="Prefixes of earlier runs, or of folders of them: what they answered is left "
        "out. A run over one source looks at all runs below store.uri.",
    )

    @field_validator("exclude")
    @classmethod
    def _patterns_compile(cls, exclude: dict[str, str]) -> dict[str, str]:
        options = re2.Options()
        options.log_errors = False
        for name, pattern in exclude.items():
            try:
                if len(pattern) > _MOST_PATTERN_CHARS:
                    raise ValueError(f"{name}: the pattern is too long")
                re2.compile(pattern, options=options)
            except re2.error as error:
                reason = error.args[0] if error.args else "no pattern"
                shown = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
                raise ValueError(f"{name} is no RE2 pattern: {shown}") from error
        return exclude
