"""What the user can set about training samples and the merge."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TokensConfig(BaseModel):
    """How outcomes become samples: part of the key of every tokens part."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    truncated: Literal["keep", "drop"] = Field(
        default="keep", description="Answers cut at max_tokens: kept without end token, or dropped."
    )
    max_length: int | None = Field(
        default=None, ge=16, description="Longest sample, in tokens; empty: none is too long."
    )
    too_long: Literal["drop", "cut"] = Field(
        default="drop",
        description="Samples past max_length: dropped, or the prompt's head is cut. An answer is "
        "never cut: where it alone is too long, the sample is dropped.",
    )
    retokenize: bool = Field(
        default=False,
        description="Make ids from text where a server gave none: about 1% of them are not those "
        "that it sampled. Such samples are marked retokenized.",
    )
    tiny_mask_tokens: int = Field(
        default=8, ge=1, le=1000, description="Fewest supervised tokens of a sound sample."
    )
    tiny_mask_share: float = Field(
        default=0.01, ge=0, le=1, description="Share of tiny masks in a part that is an error."
    )
    check_share: float = Field(
        default=0.01, ge=0, le=1, description="Share of samples whose ids are held against text."
    )


class BaseDatasetConfig(BaseModel):
    """The dataset that the new samples are merged with; never written to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(
        description="A .parquet or .jsonl file, a folder of them, or a folder of save_to_disk."
    )
    id: str | None = Field(
        default="id", description="Column of the sample's id; empty: rows are named by number."
    )
    input_ids: str = Field(default="input_ids", description="Column of the token ids.")
    loss_mask: str = Field(default="loss_mask", description="Column of the mask, 0 or 1.")
    domain: str | None = Field(default=None, description="Column of the domain; empty: none.")
    source: str | None = Field(default=None, description="Column of the source; empty: none.")
    messages: str | None = Field(
        default=None,
        description="Column of conversations, for a base without ids: the last assistant turn is "
        "re-tokenised, and the sample marked retokenized. Empty: the base has ids.",
    )
    tools: str | None = Field(
        default=None, description="Column of the conversations' tools, as JSON; empty: none."
    )


class MergeConfig(BaseModel):
    """How the dataset is written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows_per_shard: int = Field(default=50_000, ge=1, description="Samples a shard.")
    seed: int = Field(default=0, ge=0, description="Seed of the shuffle.")
    base_rows: Literal["copy", "refer"] = Field(
        default="copy",
        description="The base's rows: copied and shuffled among the new ones, or referred to by "
        "the manifest, where they are.",
    )
    base_prompts: Literal["keep", "drop"] = Field(
        default="keep",
        description="New samples whose prompt stands in the base, id for id: kept, or dropped.",
    )
