"""The records of this room: Sample (one training row a generation) and what tasks tell of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from tasks.report.composition import Composition
from tasks.storage.record import ShardReceipt


@dataclass(frozen=True, slots=True)
class Sample:
    """One training row: the exact ids of one generation.

    Attributes:
        id: `{prompt_id}#s{sample}#g{generation}`.
        input_ids: Prompt ids, then output ids. Shape [seq_len].
        loss_mask: 0 on each prompt id, 1 on each output id. Shape [seq_len].
    """

    id: str
    source: str
    domain: str
    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.int8]
    finish_reason: str

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


class MergeReceipt(BaseModel):
    """What merging gave; counts hold n_rows = n_base + n_new."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shards: tuple[ShardReceipt, ...]
    counts: dict[str, int]
    base_composition: Composition = Field(description="Of the base dataset; empty without one.")
    composition: Composition = Field(description="Of the merged dataset.")


def sample_id(prompt_id: str, sample: int, generation: int) -> str:
    """Name a sample after the generation that made it."""
    return f"{prompt_id}#s{sample}#g{generation}"
