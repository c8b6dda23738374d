"""What the whole run will take, judged by its canary: tokens, hours, GPU-hours, each as a band.

Enters: how long each conversation of the canary was and how long it took, by source. Leaves: a
Projection that says what it rests on. Pure. It exists so that a person can stop a run that would
take three weeks before it has taken the first hour.

Tokens: the mean of each source, weighted by the source's prompts; the band is two standard errors.
Speed: at most every slot at the speed that one request had; at least what the canary itself reached
with its few requests, by the bound that no greedy schedule exceeds (work over slots, plus the
longest). More requests in flight make each one slower and all together faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.report.record import Band, Projection

_STANDARD_ERRORS = 2.0
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class Conversed:
    """One conversation of the canary: its output tokens, and the seconds that they took."""

    source: str
    n_output_tokens: int
    seconds: float


def project(
    canary: Sequence[Conversed],
    n_by_source: Mapping[str, float],
    *,
    n_slots: int | None,
    n_gpus: int | None,
) -> Projection | None:
    """Project the whole run.

    Args:
        canary: Its answered conversations.
        n_by_source: Conversations of the whole run.
        n_slots: Requests that the servers hold at once; None: unknown, then no hours are told.
        n_gpus: Of the servers together; None: unknown, then no GPU-hours are told.

    Returns:
        None where the canary has too few answers to say anything.
    """
    if len(canary) < _FEWEST or not any(row.n_output_tokens for row in canary):
        return None
    tokens = _project_tokens(canary, n_by_source)
    n_conversations = round(sum(n_by_source.values()))
    basis = f"{len(canary):,} conversations of the canary"
    hours = None
    if n_slots and (speeds := _bound_speed(canary, n_slots)) is not None:
        slow, fast = speeds
        low, high = tokens.low / fast / 3600, tokens.high / slow / 3600
        hours = Band(low=low, middle=math.sqrt(low * high), high=high)
        basis += (
            f"; {slow:,.0f} tokens/s (the canary alone) to {fast:,.0f} tokens/s "
            f"({n_slots:,} slots, each as fast as in the canary)"
        )
    gpu_hours = None
    if hours is not None and n_gpus:
        gpu_hours = Band(
            low=n_gpus * hours.low, middle=n_gpus * hours.middle, high=n_gpus * hours.high
        )
        basis += f"; {n_gpus} GPUs"
    return Projection(
        n_conversations=n_conversations,
        output_tokens=tokens,
        hours=hours,
        gpu_hours=gpu_hours,
        basis=basis,
    )


def _project_tokens(canary: Sequence[Conversed], n_by_source: Mapping[str, float]) -> Band:
    lengths: dict[str, list[int]] = {}
    for row in canary:
        lengths.setdefault(row.source, []).append(row.n_output_tokens)
    whole = [row.n_output_tokens for row in canary]
    spread = _variance(whole)
    mean = variance = 0.0
    for source, n_source in n_by_source.items():
        # A source that the canary holds next to nothing of is taken for like the others.
        seen = lengths.get(source, [])
        enough = len(seen) >= _FEWEST
        mean += n_source * _mean(seen if seen else whole)
        own_spread = _variance(seen) if enough else spread
        variance += n_source**2 * own_spread / max(1, len(seen))
        # And of the lengths that are still to be drawn.
        variance += n_source * own_spread
    width = _STANDARD_ERRORS * math.sqrt(variance)
    return Band(low=max(0.0, mean - width), middle=mean, high=mean + width)


def _bound_speed(canary: Sequence[Conversed], n_slots: int) -> tuple[float, float] | None:
    """Give the least and the most tokens a second."""
    n_tokens = sum(row.n_output_tokens for row in canary)
    busy = sum(row.seconds for row in canary)
    longest = max(row.seconds for row in canary)
    if busy <= 0:
        return None
    at_once = min(n_slots, len(canary))
    slow = n_tokens / (busy / at_once + longest)
    return slow, max(slow, n_slots * n_tokens / busy)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)


def _variance(values: Sequence[int]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)
