"""Figures to words: counts, shares, durations, and what must be said first.

Enters: numbers. Leaves: text as a person reads it, with as many digits as the figure deserves.
Pure.
"""

from __future__ import annotations

from datetime import UTC, datetime

import humanize

from tasks.report.composition import share
from tasks.report.record import Projection

UNKNOWN = "–"


def write_count(number: int) -> str:
    """Write a count in full."""
    return f"{number:,}"


def write_short(number: float) -> str:
    """Write a count, or a tick of a scale, in few letters: 2.5, 950, 12.3k, 523M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        # What would be rounded up to a thousand is one of the next letter.
        if number >= 0.9995 * size:
            scaled = number / size
            digits = f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:.1f}".removesuffix(".0")
            return digits + letter
    return f"{number:.3g}"


def write_amount(value: float) -> str:
    """Write an amount in words where it is large."""
    if value >= 1_000_000:
        return humanize.intword(value, "%.1f")
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def write_share(value: float) -> str:
    """Write a share so that little is not nothing, and nearly all is not all."""
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.1%}"


def write_figure(value: float | None) -> str:
    """Write a figure with three digits or more; one that is not known is a dash."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write_duration(seconds: float | None) -> str:
    """Write a duration in the unit that fits; one that is not known is a dash."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def write_moment(unix_seconds: float) -> str:
    """Write a moment to the minute, in UTC."""
    return f"{datetime.fromtimestamp(unix_seconds, UTC):%Y-%m-%d %H:%M} UTC"


def describe_losses(counts: dict[str, int]) -> tuple[str, bool]:
    """Say first what went wrong; the flag tells whether anything did."""
    n_all = counts.get("n_conversations", 0)
    n_lost = counts.get("n_failed", 0) + counts.get("n_partial", 0)
    if not n_lost:
        return f"All {write_count(n_all)} conversations were answered; none failed.", False
    return (
        f"{write_count(n_lost)} of {write_count(n_all)} conversations failed or broke off "
        f"({write_share(share(n_lost, n_all))}); the others were answered.",
        True,
    )


def list_bands(projection: Projection | None) -> list[tuple[str, str, str, str]]:
    """Write each band in whole numbers and words: what it is of, least, likely, most."""
    if projection is None:
        return []
    bands = (
        ("output tokens", projection.output_tokens),
        ("hours", projection.hours),
        ("GPU-hours", projection.gpu_hours),
    )
    return [
        (name, write_amount(band.low), write_amount(band.middle), write_amount(band.high))
        for name, band in bands
        if band is not None
    ]
