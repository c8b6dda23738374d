"""Throughput over time as a picture that Prefect's pages show: inside markdown, without a script.

Enters: how many tokens a run has made, now and then. Leaves: markdown with the curve twice: as an
SVG in a data URI, and as blocks in a code fence for pages that show no pictures of that kind. Pure.
Its memory is bounded: past some marks every second one is forgotten and later ones are as far
apart, which widens the steps and keeps the mean of each exact.
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Sequence

from flows.pages.view import format_duration

_MOST_MARKS = 240
_N_BLOCKS = 60
_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 34, 34
_N_GRID = 4


class SpeedSeries:
    """Tokens made by a run over time."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, float]] = [(0.0, 0.0)]
        self._step_seconds = 0.0

    def add(self, seconds: float, n_tokens: float) -> None:
        """Note that `n_tokens` had been made `seconds` after the beginning."""
        if seconds <= self._marks[-1][0]:
            return
        # The newest mark is moved on until its step is as long as the others.
        if len(self._marks) > 1 and self._marks[-1][0] - self._marks[-2][0] < self._step_seconds:
            self._marks.pop()
        self._marks.append((seconds, n_tokens))
        if len(self._marks) > _MOST_MARKS:
            self._marks = [*self._marks[:-1:2], self._marks[-1]]
            self._step_seconds = seconds / (_MOST_MARKS // 2)

    def speeds(self) -> list[tuple[float, float, float]]:
        """Give (begin, end, tokens a second) of each step."""
        pairs = itertools.pairwise(self._marks)
        return [(t0, t1, max(0.0, n1 - n0) / (t1 - t0)) for (t0, n0), (t1, n1) in pairs]


def write_plot(series: SpeedSeries) -> str:
    """Write the curve as markdown."""
    steps = series.speeds()
    if not steps:
        return "nothing was generated yet"
    seconds = steps[-1][1]
    speeds = resample(steps, _N_BLOCKS)
    mean = sum((t1 - t0) * speed for t0, t1, speed in steps) / seconds
    peak = max(speed for _, _, speed in steps)
    svg = base64.b64encode(draw_svg(steps).encode()).decode()
    return "\n".join(
        [
            f"**{mean:,.0f} tokens/s on average over {format_duration(seconds)}**, "
            f"{speeds[-1]:,.0f} in the latest step, {peak:,.0f} at most.",
            "",
            f"![tokens a second over time](data:image/svg+xml;base64,{svg})",
            "",
            "```text",
            f"{_write_blocks(speeds)}  0 to {peak:,.0f} tokens/s",
            f"{'0':<{_N_BLOCKS - 8}}{format_duration(seconds):>8}",
            "```",
        ]
    )


def resample(steps: Sequence[tuple[float, float, float]], n: int) -> list[float]:
    """Give the mean speed of each of `n` equal spans of time. Shape [n]."""
    width = steps[-1][1] / n
    means = [0.0] * n
    for begin, end, speed in steps:
        for index in range(int(begin / width), min(n, math.ceil(end / width))):
            overlap = min(end, (index + 1) * width) - max(begin, index * width)
            means[index] += speed * max(0.0, overlap) / width
    return means


def draw_svg(steps: Sequence[tuple[float, float, float]]) -> str:
    """Draw the speeds as a curve of steps, with a scale of round numbers."""
    seconds, top = steps[-1][1], _round_up(max(speed for _, _, speed in steps))
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(at: float, speed: float) -> str:
        x, y = _LEFT + width * at / seconds, _TOP + height * (1 - speed / top)
        return f"{x:.1f},{y:.1f}"

    points = " ".join(f"{place(begin, speed)} {place(end, speed)}" for begin, end, speed in steps)
    grid = "".join(
        f'<path d="M{_LEFT} {y:.1f}h{width}" stroke="#d8dce2"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_shorten(value)}</text>'
        for value in (top * step / _N_GRID for step in range(_N_GRID + 1))
        for y in (_TOP + height * (1 - value / top),)
    )
    times = "".join(
        f'<text x="{_LEFT + width * share:.1f}" y="{_HEIGHT - 12}" text-anchor="{anchor}">'
        f"{format_duration(seconds * share)}</text>"
        for share, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12" fill="#3c4450">'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>'
        f'<text x="{_LEFT}" y="20" font-size="13">output tokens a second, all servers</text>'
        f"{grid}{times}"
        f'<polyline points="{points}" fill="none" stroke="#1a66c2" stroke-width="2" '
        f'stroke-linejoin="round"/></svg>'
    )


def _write_blocks(speeds: Sequence[float]) -> str:
    peak = max(speeds) or 1.0
    return "".join(_BLOCKS[round(speed / peak * (len(_BLOCKS) - 1))] for speed in speeds)


def _round_up(value: float) -> float:
    """Give the next of 1, 2, 4, 8 times a power of ten: its quarters are round, too."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 4, 8, 10) if value <= factor * power * 1.000001)


def _shorten(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
