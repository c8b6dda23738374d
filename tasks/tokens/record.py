"""The record of this room: Sample, one training row a generation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field


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
    n_checked: int = Field(description="Samples whose ids were held against template and text.")


def sample_id(prompt_id: str, sample: int, generation: int) -> str:
    """Name a sample after the generation that made it."""
    return f"{prompt_id}#s{sample}#g{generation}"
