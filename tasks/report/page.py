"""Figures to one self-contained HTML page: no script, no request, nothing that runs.

Enters: ReportFigures or CanaryFigures, whose strings were partly written by strangers. Leaves: a
page that may be opened from anywhere. It exists so that a run can be judged by a person in a
minute. Every string is stripped of control and bidi characters and escaped on its way out; a
content security policy shuts the door once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from typing import Any

import humanize
import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tasks.report.composition import LENGTH_EDGES, Composition, Tally, share
from tasks.report.inert import strip_controls
from tasks.report.record import CanaryFigures, GateFigure, Projection, ReportFigures, ShownSample

CONVERSATIONS_A_SOURCE = 20

_ACCOUNTING = (
    ("n_source_rows", "Rows read from the sources", False),
    ("n_rejected", "rejected, each with a reason", True),
    ("n_not_sampled", "left out by a source's quota", True),
    ("n_duplicates", "duplicates across sources", True),
    ("n_prompts", "Prompts", False),
    ("n_conversations", "Conversations", False),
    ("n_completed", "completed", True),
    ("n_truncated", "truncated at the longest answer", True),
    ("n_partial", "partial: some turns, then a failure", True),
    ("n_failed", "failed: no turn at all", True),
    ("n_retried", "of them asked anew by retries, the newest counts", True),
    ("n_generations", "Generations (answers by the target)", False),
    ("n_dropped", "left out of the samples", True),
    ("n_samples", "Training samples", False),
    ("n_retokenized", "of them with ids made of text", True),
    ("n_prompts_cut", "of them with a prompt cut at its head", True),
    ("n_dropped_prompts", "of them left out: the base has their prompts", True),
    ("n_base_rows", "Rows of the base dataset", False),
    ("n_dataset_rows", "Rows of the merged dataset", False),
)
_CANARY_HEADLINES = (
    ("n_conversations", "conversations"),
    ("n_generations", "answers"),
    ("n_samples", "training samples"),
    ("n_supervised_tokens", "supervised tokens"),
)


def render_report(figures: ReportFigures) -> str:
    """Render the report on one revision of the dataset."""
    counts = figures.counts
    return _template("report.html.jinja2").render(
        figures=figures,
        title=f"{figures.name} · r{figures.revision:04d}",
        verdict=describe_losses(counts),
        headlines=_list_headlines(figures),
        accounting=[
            (label, counts[key], inner) for key, label, inner in _ACCOUNTING if key in counts
        ],
        domains=_compare(figures.before.by_domain, figures.after.by_domain),
        sources=_compare(figures.before.by_source, figures.after.by_source),
        has_base=figures.before.total.n_rows > 0,
        lengths=_list_bins(figures.before, figures.after),
        gates=[_describe_gate(gate) for gate in figures.gates],
        tallies=[
            ("Why answers ended", _list_shares(figures.finish_reasons)),
            ("Failures by kind", _list_shares(figures.failures)),
            ("Generations left out", _list_shares(figures.dropped)),
            ("Rows rejected", _list_shares(figures.rejections)),
        ],
        settings=orjson.dumps(figures.settings, option=orjson.OPT_INDENT_2).decode(),
    )


def render_canary(figures: CanaryFigures) -> str:
    """Render the preview of the canary: 20 conversations a source, tokens told apart by mask."""
    by_source = sorted(figures.samples, key=lambda sample: sample.source)
    return _template("canary.html.jinja2").render(
        figures=figures,
        title=f"{figures.name} · canary",
        verdict=describe_losses(figures.counts),
        headlines=[
            (label, _count(figures.counts[key]))
            for key, label in _CANARY_HEADLINES
            if key in figures.counts
        ],
        gates=[_describe_gate(gate) for gate in figures.gates],
        tallies=[
            ("Why answers ended", _list_shares(figures.finish_reasons)),
            ("Failures by kind", _list_shares(figures.failures)),
        ],
        groups=[
            (source, _group_conversations(group))
            for source, group in groupby(by_source, key=_source_of)
        ],
        projection=figures.projection,
        bands=list_bands(figures.projection),
    )


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("tasks.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Applied to every value before it is escaped: no template can forget it.
        finalize=lambda value: strip_controls(value) if isinstance(value, str) else value,
    )
    environment.filters["count"] = _count
    environment.filters["percent"] = _percent
    environment.filters["figure"] = _figure
    return environment.get_template(name)


def _source_of(sample: ShownSample) -> str:
    return sample.source


def _group_conversations(samples: Iterable[ShownSample]) -> list[list[ShownSample]]:
    """Put the answers of each conversation together, for the first 20 conversations."""
    grouped: dict[str, list[ShownSample]] = {}
    for sample in samples:
        grouped.setdefault(sample.id.rpartition("#")[0] or sample.id, []).append(sample)
    return list(grouped.values())[:CONVERSATIONS_A_SOURCE]


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
        (name, _write_amount(band.low), _write_amount(band.middle), _write_amount(band.high))
        for name, band in bands
        if band is not None
    ]


def _write_amount(value: float) -> str:
    if value >= 1_000_000:
        return humanize.intword(value, "%.1f")
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _count(number: int) -> str:
    return f"{number:,}"


def _percent(value: float) -> str:
    """Write a share so that little is not nothing, and nearly all is not all."""
    if 0 < value < 0.001:
        return "<0.1%"
    if 0.999 < value < 1:
        return ">99.9%"
    return f"{value:.1%}"


def _figure(value: float | None) -> str:
    """Write a figure with as many digits as it deserves; one that is not known is a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def describe_losses(counts: dict[str, int]) -> tuple[str, bool]:
    """Say first what went wrong; the flag tells whether anything did."""
    n_all = counts.get("n_conversations", 0)
    n_lost = counts.get("n_failed", 0) + counts.get("n_partial", 0)
    if not n_lost:
        return f"All {_count(n_all)} conversations were answered; none failed.", False
    return (
        f"{_count(n_lost)} of {_count(n_all)} conversations failed or broke off "
        f"({_percent(share(n_lost, n_all))}); the others were answered.",
        True,
    )


def _list_headlines(figures: ReportFigures) -> list[tuple[str, str]]:
    total, n_base = figures.after.total, figures.before.total.n_rows
    new = [("of them new", _count(total.n_rows - n_base))] if n_base else []
    supervised = total.n_supervised_tokens
    return [
        ("rows in the dataset", _count(total.n_rows)),
        *new,
        ("supervised tokens", humanize.intword(supervised, "%.1f")),
        ("of all tokens", _percent(share(supervised, total.n_tokens))),
    ]


def _compare(before: dict[str, Tally], after: dict[str, Tally]) -> list[dict[str, Any]]:
    """List names by their supervised tokens after, with shares before and after."""
    all_before = sum(before.values(), Tally())
    all_after = sum(after.values(), Tally())
    rows = []
    for name in sorted(after, key=lambda key: (-after[key].n_supervised_tokens, key)):
        then, now = before.get(name, Tally()), after[name]
        rows.append(
            {
                "name": name,
                "now": now,
                "rows_before": share(then.n_rows, all_before.n_rows),
                "rows_after": share(now.n_rows, all_after.n_rows),
                "tokens_before": share(then.n_supervised_tokens, all_before.n_supervised_tokens),
                "tokens_after": share(now.n_supervised_tokens, all_after.n_supervised_tokens),
            }
        )
    return rows


def _list_bins(before: Composition, after: Composition) -> list[dict[str, Any]]:
    """List the histogram's bins with labels and heights from 0 to 1; empty ends are left out."""
    names = [f"≤{_short(edge)}" for edge in LENGTH_EDGES] + [f">{_short(LENGTH_EDGES[-1])}"]
    counts = list(zip(before.lengths, after.lengths, strict=True))
    most = max(map(max, counts))
    filled = [index for index, pair in enumerate(counts) if any(pair)]
    if not filled:
        return []
    return [
        {
            "label": names[i],
            "n_before": counts[i][0],
            "n_rows": counts[i][1],
            "height_before": counts[i][0] / most,
            "height": counts[i][1] / most,
        }
        for i in range(filled[0], filled[-1] + 1)
    ]


def _short(edge: int) -> str:
    return f"{edge // 1024}k" if edge >= 1024 else str(edge)


def _list_shares(tally: dict[str, int]) -> list[tuple[str, int, float]]:
    whole = sum(tally.values())
    ordered = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return [(name, number, share(number, whole)) for name, number in ordered]


def _describe_gate(gate: GateFigure) -> dict[str, Any]:
    value = share(gate.n_flagged, gate.n_judged)
    over = value > gate.threshold
    verdict = ("accepted" if gate.accepted else "over") if over else "within"
    return {
        "gate": gate,
        "name": gate.name.replace("_", " "),
        "share": value,
        "verdict": verdict,
        "fill": min(share_of_limit(value, gate.threshold), 1.0),
    }


def share_of_limit(value: float, limit: float) -> float:
    """Give how much of a limit is used up; a limit of 0 is used up by anything."""
    return value / limit if limit else float(value > 0)
