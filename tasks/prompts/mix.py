"""The run's order of prompts, and how many each source gives; pure.

Enters: a seed, prompt ids, numbers of prompts. Leaves: the order in which prompts are sampled and
chunked, and the canary's share of each source. The order is a hash of seed and id: it mixes the
sources, needs no shuffle in memory, and a prompt keeps its place whatever stands around it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def order_key(seed: int, prompt_id: str) -> bytes:
    """Give a prompt's place in the order: 16 bytes, compared as bytes."""
    return hashlib.blake2b(f"{seed}:{prompt_id}".encode(), digest_size=16).digest()


def share_canary(n_prompts: Sequence[int], canary_size: int) -> list[int]:
    """Split the canary over sources in proportion to their prompts.

    Each source that has a prompt gets at least one, as long as the canary has room for that.

    Args:
        n_prompts: Prompts of each source.
        canary_size: Prompts of the canary, if there are as many.

    Returns:
        The canary's prompts of each source; they sum to the canary's size, or to all prompts.
    """
    total = sum(n_prompts)
    size = min(canary_size, total)
    if total == 0:
        return [0 for _ in n_prompts]
    exact = [size * n / total for n in n_prompts]
    shares = [min(n, max(1, int(share))) for n, share in zip(n_prompts, exact, strict=True)]
    # Largest remainder first, then the earlier source; the greatest share gives where there is
    # too much.
    while sum(shares) < size:
        open_sources = [i for i, n in enumerate(n_prompts) if shares[i] < n]
        shares[max(open_sources, key=lambda i: (exact[i] - shares[i], -i))] += 1
    while sum(shares) > size:
        shares[max(range(len(shares)), key=lambda i: (shares[i], i))] -= 1
    return shares
