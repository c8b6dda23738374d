"""The policy on samples past max_length: dropped, or the prompt's head cut, never the answer. Pure.

Enters: the lengths of samples, and their flat ids as prompt, output, prompt, output, ... Leaves:
which samples and which tokens stay.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tasks.tokens.config import TokensConfig
from tasks.tokens.ids import Int64Array

BoolArray = npt.NDArray[np.bool_]


def fit_length(
    prompt_lens: Int64Array, output_lens: Int64Array, config: TokensConfig
) -> tuple[BoolArray, Int64Array]:
    """Judge samples by their length; all arrays have shape [n_samples].

    Of a prompt that is cut one id stays at least: an answer that leaves no room for it is too long.

    Returns:
        Which samples stay, and how many ids each one loses at its prompt's head.
    """
    seq_lens = prompt_lens + output_lens
    if config.max_length is None:
        return np.ones(len(seq_lens), dtype=np.bool_), np.zeros_like(seq_lens)
    excess = np.maximum(seq_lens - config.max_length, 0)
    fits = excess < prompt_lens if config.too_long == "cut" else excess == 0
    return fits, np.where(fits, excess, 0)


def mark_kept_tokens(kept: BoolArray, n_cut: Int64Array, seq_lens: Int64Array) -> BoolArray:
    """Mark the tokens that stay, shape [sum(seq_lens)]."""
    by_token = np.repeat(kept, seq_lens)
    starts = np.cumsum(seq_lens) - seq_lens
    for index in np.flatnonzero(n_cut):
        by_token[starts[index] : starts[index] + n_cut[index]] = False
    return by_token
