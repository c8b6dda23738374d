"""What assembling one part counted, and the judgement on its masks.

Enters: batches of samples as they are made. Leaves: the counts of a SamplesReceipt, or a MaskError.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tasks.errors import MaskError
from tasks.storage.record import PartReceipt
from tasks.tokens.config import TokensConfig
from tasks.tokens.ids import Int64Array
from tasks.tokens.record import SamplesReceipt

MOST_NAMED = 10


@dataclass(slots=True)
class SamplesTally:
    """Counts of one part; `tiny` names the first samples with a tiny mask."""

    n_generations: int = 0
    n_samples: int = 0
    n_tokens: int = 0
    n_supervised_tokens: int = 0
    n_tiny_masks: int = 0
    n_checked: int = 0
    n_cut: int = 0
    tiny: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    token_sources: Counter[str] = field(default_factory=Counter)
    drift: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        row_ids: Sequence[str],
        seq_lens: Int64Array,
        output_lens: Int64Array,
        config: TokensConfig,
    ) -> None:
        """Count samples that were written; lengths have shape [n_samples]."""
        tiny = np.flatnonzero(output_lens < config.tiny_mask_tokens)
        self.n_samples += len(row_ids)
        self.n_tokens += int(seq_lens.sum())
        self.n_supervised_tokens += int(output_lens.sum())
        self.n_tiny_masks += len(tiny)
        self.tiny += [row_ids[i] for i in tiny[: MOST_NAMED - len(self.tiny)]]

    def judge_tiny_masks(self, config: TokensConfig, where: str) -> None:
        """Stop where too many samples supervise next to nothing.

        Raises:
            MaskError: The share of tiny masks is above the one allowed.
        """
        if self.n_tiny_masks > config.tiny_mask_share * self.n_samples:
            raise MaskError(
                f"{self.n_tiny_masks} of {self.n_samples} samples "
                f"({self.n_tiny_masks / self.n_samples:.1%}) supervise fewer than "
                f"{config.tiny_mask_tokens} tokens, more than the "
                f"{config.tiny_mask_share:.1%} allowed: {', '.join(self.tiny)}.",
                where=where,
                remedy="Look at these answers; raise tokens.tiny_mask_share if they are sound.",
            )

    def tell(self, key: str, part: PartReceipt) -> SamplesReceipt:
        """Sum up, but for the file's own hash and size."""
        return SamplesReceipt(
            data_key=part.key,
            data_sha256=part.sha256,
            key=key,
            sha256="",
            n_bytes=0,
            n_generations=self.n_generations,
            n_samples=self.n_samples,
            n_dropped=dict(sorted(self.dropped.items())),
            n_tokens=self.n_tokens,
            n_supervised_tokens=self.n_supervised_tokens,
            n_tiny_masks=self.n_tiny_masks,
            finish_reasons=dict(sorted(self.finish_reasons.items())),
            n_checked=self.n_checked,
            n_cut=self.n_cut,
            token_sources=dict(sorted(self.token_sources.items())),
            drift=dict(sorted(self.drift.items())),
        )
