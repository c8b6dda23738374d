"""The records of this room: Sample (one training row a generation) and what tasks tell of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tasks.report.composition import Composition
from tasks.storage.record import ShardReceipt

RETOKENIZED = "retokenized"


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row: the exact ids of one generation.

    Attributes:
        id: `{prompt_id}#s{sample}#g{generation}`.
        input_ids: Prompt ids, then output ids. Shape [seq_len].
        loss_mask: 0 on each prompt id, 1 on each output id. Shape [seq_len].
        finish_reason: Why the answer ended.
        token_source: Where its ids come from: chat and native are the server's own, retokenized
            is made of text, unknown is a base dataset's.
    """

    id: str
    source: str
    domain: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int8]
    finish_reason: str
    token_source: str

    @property
    def seq_len(self) -> int:
        """Tokens in all."""
        return int(self.input_ids.shape[0])


class SamplesReceipt(BaseModel):
    """What assembling one data part gave; n_generations = n_samples + n_dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_key: str = Field(description="Key of the data part that it was made from.")
    data_sha256: str
    key: str
    sha256: str
    n_bytes: int
    n_generations: int
    n_samples: int
    n_dropped: dict[str, int] = Field(description="Generations left out, by reason.")
    n_tokens: int
    n_supervised_tokens: int
    n_tiny_masks: int
    finish_reasons: dict[str, int] = Field(description="Samples, by finish_reason.")
    n_checked: int = Field(description="Samples whose ids were held against template and text.")
    n_cut: int = Field(default=0, description="Samples whose prompt lost its head to max_length.")
    token_sources: dict[str, int] = Field(default={}, description="Samples, by token_source.")
    drift: dict[str, int] = Field(
        default={},
        description="Samples with exact ids that were re-tokenised beside them: how many were "
        "compared, and how many of these differ, in the prompt or in the answer.",
    )


class BaseReference(BaseModel):
    """A base dataset that a revision refers to and does not copy: its rows belong to it too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: dict[str, Any] = Field(description="Place and column names (BaseDatasetConfig).")
    sha256: str = Field(description="Over its files' names and bytes (`base.hash_base`).")
    n_rows: int


class MergeReceipt(BaseModel):
    """What merging gave; counts hold n_rows = n_base + n_new, whether the base is copied or not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[ShardReceipt, ...]
    counts: dict[str, int]
    base_composition: Composition = Field(description="Of the base dataset; empty without one.")
    composition: Composition = Field(description="Of the merged dataset.")
    base: BaseReference | None = Field(
        default=None, description="The base, where the shards hold the new samples alone."
    )


def name_conversation(sample_id: str) -> str:
    """Name the conversation that a sample is of: its id without the generation."""
    return sample_id.rpartition("#")[0]


def sample_id(prompt_id: str, sample: int, generation: int) -> str:
    """Name a sample after the generation that made it."""
    return f"{prompt_id}#s{sample}#g{generation}"
