"""When generation may end: a band in seconds, weighted by tokens. Pure.

Enters: what is left, and lengths and speeds seen so far. Leaves: an Eta, or None where too little
was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_FEWEST_ANSWERS = 20
# Two standard errors: the band holds the sum of the lengths to come 19 times in 20.
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the last answer, as a band, and what it rests on."""

    low_seconds: float
    high_seconds: float
    basis: str


def estimate_end(
    *, n_left: int, n_made: int, n_tokens: int, sum_squared: int, speeds: tuple[float, float]
) -> Eta | None:
    """Say when the last answer may come: tokens that are left over tokens a second.

    Args:
        n_left: Conversations without an outcome.
        n_made: Conversations that this run generated.
        n_tokens: Their tokens.
        sum_squared: The sum of the squares of their tokens.
        speeds: Tokens a second: the average, and now.

    Returns:
        None where too little was seen, or nothing moves.
    """
    slow, fast = min(speeds), max(speeds)
    if n_made < _FEWEST_ANSWERS or slow <= 0:
        return None
    mean = n_tokens / n_made
    deviation = math.sqrt(max(0.0, sum_squared / n_made - mean * mean))
    # Of the mean itself, and of the lengths that are still to be drawn.
    spread = _WIDTH * deviation * math.sqrt(n_left * n_left / n_made + n_left)
    least = max(0.0, n_left * mean - spread)
    return Eta(
        low_seconds=least / fast,
        high_seconds=(n_left * mean + spread) / slow,
        basis=f"{n_made:,} conversations of this run, {mean:,.0f} tokens each, "
        f"{slow:,.0f} to {fast:,.0f} tokens/s",
    )
