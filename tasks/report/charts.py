"""Figures to the geometry of static charts: places and heights, and nothing that is drawn.

Enters: figures over bins, steps or names. Leaves: numbers in percent of a chart's width and height,
and labels, which the templates put into SVG. It exists so that charts are as wide as the screen
while their text keeps its size: widths are shares and never pixels. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tasks.report.composition import LENGTH_EDGES, Tally, share
from tasks.report.record import CostFigures, GenerationFigures
from tasks.report.wording import write_count, write_duration, write_short

N_COLOURS = 6
# A bound further above than that would press what was measured flat.
_HIGHEST_BOUND = 2.5


def draw_mix(before: dict[str, Tally], after: dict[str, Tally]) -> dict[str, Any]:
    """Lay out the shares of supervised tokens as bars; small names are one, at the end."""
    names = sorted(after, key=lambda name: (-after[name].n_supervised_tokens, name))
    shown = names if len(names) <= N_COLOURS else names[: N_COLOURS - 1]
    bars = {"before": _stack(before, shown), "after": _stack(after, shown)}
    legend = [
        {
            "name": piece["name"],
            "colour": piece["colour"],
            "n_others": len(names) - len(shown) if piece["name"] is None else 0,
            "before": old["share"],
            "after": piece["share"],
        }
        for old, piece in zip(bars["before"], bars["after"], strict=True)
        if piece["share"] or old["share"]
    ]
    return {"bars": bars, "legend": legend, "has_before": any(before.values())}


def _stack(tallies: dict[str, Tally], shown: Sequence[str]) -> list[dict[str, Any]]:
    whole = sum(tally.n_supervised_tokens for tally in tallies.values())
    pieces: list[dict[str, Any]] = []
    left = 0.0
    for index, name in enumerate(shown):
        part = share(tallies.get(name, Tally()).n_supervised_tokens, whole)
        pieces.append({"name": name, "colour": f"c{index}", "share": part, "x": 100 * left})
        left += part
    rest = max(0.0, 1 - left) if whole else 0.0
    rest = rest if rest > 1e-9 else 0.0
    pieces.append({"name": None, "colour": "others", "share": rest, "x": 100 * left})
    for piece in pieces:
        piece["width"] = 100 * piece["share"]
    return pieces


def draw_lengths(now: Sequence[int], before: Sequence[int] = ()) -> dict[str, Any] | None:
    """Lay out a histogram over the bins of LENGTH_EDGES; empty ends are left out.

    Args:
        now: Rows by bin. Shape [n_bins].
        before: The same of what was there before; empty: nothing.
    """
    counts = [(old, new) for old, new in zip(before or [0] * len(now), now, strict=True)]
    filled = [index for index, pair in enumerate(counts) if any(pair)]
    if not filled:
        return None
    most = max(map(max, counts))
    first, last = filled[0], filled[-1]
    step = 100 / (last - first + 1)
    bars = []
    for place, index in enumerate(range(first, last + 1)):
        old, new = counts[index]
        bars.append(
            {
                "label": _name_bin(index),
                "longest": _describe_bin(index),
                "n_before": old,
                "n_now": new,
                "short": write_short(new) if new else "",
                "middle": (place + 0.5) * step,
                "x_before": (place + 0.08) * step,
                "x_now": (place + (0.36 if before else 0.12)) * step,
                "w_before": 0.24 * step,
                "w_now": (0.54 if before else 0.76) * step,
                "h_before": old / most,
                "h_now": new / most,
            }
        )
    return {"bars": bars, "has_before": bool(before)}


def _name_bin(index: int) -> str:
    if index == len(LENGTH_EDGES):
        return f">{_write_edge(LENGTH_EDGES[-1])}"
    return f"≤{_write_edge(LENGTH_EDGES[index])}"


def _describe_bin(index: int) -> str:
    if index == len(LENGTH_EDGES):
        return f"more than {write_count(LENGTH_EDGES[-1])}"
    lowest = LENGTH_EDGES[index - 1] + 1 if index else 1
    return f"{write_count(lowest)} to {write_count(LENGTH_EDGES[index])}"


def _write_edge(edge: int) -> str:
    return f"{edge // 1024}k" if edge >= 1024 else str(edge)


def draw_throughput(done: GenerationFigures, cost: CostFigures) -> dict[str, Any] | None:
    """Lay tokens a second over time on top of each other, server by server, below the roofline.

    Returns:
        None where no answer says when it came.
    """
    series = [server.tokens_per_second for server in done.endpoints if server.tokens_per_second]
    if not series:
        return None
    n_steps = len(series[0])
    sums = [[0.0] * n_steps]
    for speeds in series:
        sums.append([below + speed for below, speed in zip(sums[-1], speeds, strict=True)])
    highest, bound = max(sums[-1]), cost.bound_tokens_per_second
    whole = bound * len(series) if bound else None
    is_above = whole is not None and whole > _HIGHEST_BOUND * highest
    top, ticks = _scale(max(highest, whole if whole and not is_above else 0.0))
    # Of what is drawn: answers that do not say when they came are in no step.
    mean = sum(sums[-1]) / n_steps
    return {
        "areas": [
            {"points": _outline(lower, upper, top), "colour": f"t{index % 2}"}
            for index, (lower, upper) in enumerate(pairwise(sums))
        ],
        "n_servers": len(series),
        "ticks": ticks,
        "bound": None if whole is None or is_above else 100 * (1 - whole / top),
        "bound_label": None if whole is None else f"{write_count(round(whole))} tokens/s",
        "bound_is_above": is_above,
        "mean": mean,
        "share_of_bound": mean / whole if whole else None,
        "peak": highest,
        **_axis(done),
    }


def draw_in_flight(done: GenerationFigures) -> dict[str, Any] | None:
    """Lay out requests in flight over time, below the slots of all servers."""
    if not done.in_flight:
        return None
    known = [server.slots for server in done.endpoints if server.tokens_per_second]
    slots = sum(n or 0 for n in known) if all(known) else 0
    top, ticks = _scale(max(*done.in_flight, slots))
    return {
        "area": _outline([0.0] * len(done.in_flight), done.in_flight, top),
        "ticks": ticks,
        "slots": slots,
        "line": 100 * (1 - slots / top) if slots else None,
        **_axis(done),
    }


def draw_spark(speeds: Sequence[float], top: float) -> str:
    """Outline one server's tokens a second, as high as `top` at most."""
    return _outline([0.0] * len(speeds), speeds, top) if speeds and top else ""


def _axis(done: GenerationFigures) -> dict[str, Any]:
    """Label the axis of time, and find the pauses that are left out of it."""
    seconds = done.seconds
    pauses, before = [], 0.0
    for stretch in done.stretches[:-1]:
        before += stretch.seconds
        pauses.append(100 * before / seconds)
    labels = [(0, "0"), (50, write_duration(seconds / 2)), (100, write_duration(seconds))]
    return {"n_steps": len(done.in_flight), "pauses": pauses, "labels": labels}


def _outline(lower: Sequence[float], upper: Sequence[float], top: float) -> str:
    """Walk along the upper edge in steps and back along the lower; heights in percent of `top`."""
    there = [(x, _height(y, top)) for i, y in enumerate(upper) for x in (i, i + 1)]
    back = [(x, _height(y, top)) for i, y in reversed(list(enumerate(lower))) for x in (i + 1, i)]
    return " ".join(f"{x},{y}" for x, y in (*there, *back))


def _height(value: float, top: float) -> str:
    return f"{100 * (1 - value / top):.1f}"


def _scale(highest: float) -> tuple[float, list[tuple[float, str]]]:
    """Choose round ticks: the chart's top, and (place in percent from above, label)."""
    if highest <= 0:
        return 1.0, []
    rough = highest / 3
    size = 10.0 ** math.floor(math.log10(rough))
    step = size * next(round_one for round_one in (1, 2, 2.5, 5, 10) if round_one * size >= rough)
    n_ticks = max(1, math.ceil(highest / step - 1e-9))
    top = n_ticks * step
    return top, [(100 * (1 - i / n_ticks), write_short(i * step)) for i in range(n_ticks + 1)]
