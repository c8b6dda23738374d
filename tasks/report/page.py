"""Figures to one self-contained HTML page: no script, no request, nothing that runs.

Enters: ReportFigures or CanaryFigures, whose strings were partly written by strangers. Leaves: a
page that may be opened from anywhere. It exists so that a run can be judged by a person in a
minute. Every string is stripped of control and bidi characters and escaped on its way out; a
content security policy shuts the door once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from tasks.report.balance import balance
from tasks.report.browser import group_samples, keep_conversations
from tasks.report.charts import (
    draw_in_flight,
    draw_lengths,
    draw_mix,
    draw_spark,
    draw_throughput,
)
from tasks.report.composition import Tally, share
from tasks.report.glance import glance_at_cost, list_accounting, list_outcomes
from tasks.report.inert import strip_controls
from tasks.report.record import CanaryFigures, GateFigure, GenerationFigures, ReportFigures
from tasks.report.wording import (
    describe_losses,
    list_bands,
    write_amount,
    write_count,
    write_duration,
    write_figure,
    write_moment,
    write_share,
    write_short,
)

CONVERSATIONS_A_SOURCE = 20
_MOST_ROWS = 40
"""Names that a table shows; the others are summed up in one row."""

_CANARY_HEADLINES = (
    ("n_conversations", "conversations"),
    ("n_generations", "answers"),
    ("n_samples", "training samples"),
)


def render_report(figures: ReportFigures) -> str:
    """Render the report on one revision of the dataset."""
    counts, before, after = figures.counts, figures.before, figures.after
    groups, n_left_out = group_samples(figures.samples)
    done = figures.generation
    return _template("report.html.jinja2").render(
        figures=figures,
        title=f"{figures.name} · r{figures.revision:04d}",
        verdict=describe_losses(counts),
        outcomes=list_outcomes(counts),
        balances=balance(counts, figures.n_asked),
        cost=glance_at_cost(figures),
        mix=draw_mix(before.by_domain, after.by_domain),
        total=after.total,
        n_base=before.total.n_rows,
        supervised_share=share(after.total.n_supervised_tokens, after.total.n_tokens),
        accounting=list_accounting(counts),
        domains=_compare(before.by_domain, after.by_domain),
        sources=_compare(before.by_source, after.by_source),
        has_base=before.total.n_rows > 0,
        lengths=draw_lengths(after.lengths, before.lengths if before.total.n_rows else ()),
        answers=draw_lengths(done.answer_lengths) if done else None,
        throughput=draw_throughput(done, figures.cost) if done else None,
        in_flight=draw_in_flight(done) if done else None,
        servers=_list_servers(done, figures.cost.bound_tokens_per_second),
        gates=[_describe_gate(gate) for gate in figures.gates],
        failures=_list_shares(figures.failures),
        retries=_list_shares(done.retries) if done else [],
        finish_reasons=_list_shares(figures.finish_reasons),
        left_out=[
            ("Rows rejected, by why", _list_shares(figures.rejections)),
            ("Answers left out of the samples, by why", _list_shares(figures.dropped)),
        ],
        groups=groups,
        n_left_out=n_left_out,
        settings=[
            (name, orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
            for name, value in figures.settings.items()
        ],
    )


def render_canary(figures: CanaryFigures) -> str:
    """Render the preview of the canary: 20 conversations a source, tokens told apart by mask."""
    groups, n_left_out = group_samples(keep_conversations(figures.samples, CONVERSATIONS_A_SOURCE))
    done = figures.generation
    return _template("canary.html.jinja2").render(
        figures=figures,
        title=f"{figures.name} · canary",
        verdict=describe_losses(figures.counts),
        headlines=[
            (label, write_count(figures.counts[key]))
            for key, label in _CANARY_HEADLINES
            if key in figures.counts
        ],
        outcomes=list_outcomes(figures.counts),
        gates=[_describe_gate(gate) for gate in figures.gates],
        failures=_list_shares(figures.failures),
        retries=_list_shares(done.retries) if done else [],
        finish_reasons=_list_shares(figures.finish_reasons),
        answers=draw_lengths(done.answer_lengths) if done else None,
        servers=_list_servers(done, None),
        groups=groups,
        n_left_out=n_left_out,
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
    environment.filters |= {
        "amount": write_amount,
        "count": write_count,
        "duration": write_duration,
        "figure": write_figure,
        "moment": write_moment,
        "percent": write_share,
        "place": lambda value: f"{value:.2f}",
        "short": write_short,
    }
    return environment.get_template(name)


def _compare(before: dict[str, Tally], after: dict[str, Tally]) -> list[dict[str, Any]]:
    """List names by their supervised tokens after, with shares before and after."""
    all_before, all_after = _add(before.values()), _add(after.values())
    names = sorted(after, key=lambda key: (-after[key].n_supervised_tokens, key))
    pairs = [(name, before.get(name, Tally()), after[name]) for name in names]
    if len(pairs) > _MOST_ROWS:
        rest = pairs[_MOST_ROWS - 1 :]
        then, now = _add(old for _, old, _ in rest), _add(new for _, _, new in rest)
        pairs = [*pairs[: _MOST_ROWS - 1], (f"{len(rest):,} others", then, now)]
    return [
        {
            "name": name,
            "now": now,
            "rows_before": share(then.n_rows, all_before.n_rows),
            "rows_after": share(now.n_rows, all_after.n_rows),
            "tokens_before": share(then.n_supervised_tokens, all_before.n_supervised_tokens),
            "tokens_after": share(now.n_supervised_tokens, all_after.n_supervised_tokens),
        }
        for name, then, now in pairs
    ]


def _add(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, Tally())


def _list_shares(tally: dict[str, int]) -> list[tuple[str, int, float]]:
    whole = sum(tally.values())
    ordered = sorted(tally.items(), key=lambda item: (-item[1], item[0]))
    return [(name, number, share(number, whole)) for name, number in ordered]


def _list_servers(done: GenerationFigures | None, bound: float | None) -> list[dict[str, Any]]:
    """List the servers, each with its outline over time; all are drawn to one scale."""
    servers = done.endpoints if done else ()
    top = max((max(server.tokens_per_second, default=0.0) for server in servers), default=0.0)
    return [
        {
            "server": server,
            "mean": sum(server.tokens_per_second) / len(server.tokens_per_second)
            if server.tokens_per_second
            else None,
            "spark": draw_spark(server.tokens_per_second, max(top, bound or 0.0)),
            "bound": 100 * (1 - bound / max(top, bound)) if bound else None,
            "n_steps": len(server.tokens_per_second),
        }
        for server in servers
    ]


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
