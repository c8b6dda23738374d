"""What generation looks like: a line for logs, a view for terminals, a table for Prefect. Pure.

Enters: a RunProgress. Leaves: text and renderables. Names of strangers (urls) are escaped.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.pages.eta import Eta
from flows.pages.progress import RunProgress

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# A fleet of more would push the counts off the screen.
_MOST_ENDPOINTS = 24
_INDENT = " " * 23


def describe_progress(state: RunProgress) -> str:
    """Put the counts of generation in one line."""
    failed = f", {state.n_failed:,} failed" if state.n_failed else ""
    return (
        f"{state.n_done:,}/{state.n_total:,} conversations{failed}, "
        f"{state.n_output_tokens:,} tokens, {state.tokens_per_second_now:,.0f} tokens/s now, "
        f"{state.tokens_per_second:,.0f} on average, {state.n_in_flight:,} in flight"
    )


def describe_chunk(state: RunProgress) -> str:
    """Tell of a published chunk, and of the run, in one line."""
    line = (
        f"chunk {state.ended_chunk} is published ({state.n_chunks_done:,} of {state.n_chunks:,}): "
        f"{describe_progress(state)}"
    )
    return line if state.eta is None else f"{line}, {describe_eta(state.eta)}"


def describe_eta(eta: Eta) -> str:
    """Tell when the last answer may come."""
    low, high = format_duration(eta.low_seconds), format_duration(eta.high_seconds)
    return f"{low} left" if low == high else f"{low} to {high} left"


def format_duration(seconds: float) -> str:
    """Write a duration in its largest fitting unit."""
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / _DAY:.1f} days"


def draw_progress(state: RunProgress) -> RenderableType:
    """Lay generation out for a terminal: the bar, the end, each endpoint, failures."""
    head = Table.grid(padding=(0, 1))
    head.add_row(
        _INDENT[:-1],
        ProgressBar(total=max(1, state.n_total), completed=state.n_done, width=24),
        Text(describe_progress(state)),
    )
    rows: list[RenderableType] = [head]
    if state.eta is not None:
        rows.append(_note(f"{describe_eta(state.eta)} ({state.eta.basis})"))
    if state.n_replayed:
        rows.append(_note(f"{state.n_replayed:,} of them from earlier runs"))
    if state.failures:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in state.failures.items())
        rows.append(_note(f"ended early: {kinds}"))
    if state.endpoints:
        rows.append(_draw_endpoints(state))
    return Group(*rows)


def tabulate_endpoints(state: RunProgress) -> list[dict[str, Any]]:
    """Give the endpoints as rows of a table."""
    return [
        {
            "endpoint": load.base_url,
            "state": load.state,
            "in flight": load.n_in_flight,
            "slots": load.slots,
            "answered": load.n_answered,
            "errors": load.n_errors,
        }
        for load in state.endpoints
    ]


def tabulate_run(state: RunProgress) -> list[dict[str, Any]]:
    """Give the run's figures, then the endpoints, as rows of one table."""
    figures = {
        "conversations": f"{state.n_done:,} of {state.n_total:,}",
        "from earlier runs": f"{state.n_replayed:,}",
        "chunks": f"{state.n_chunks_done:,} of {state.n_chunks:,}",
        "tokens": f"{state.n_output_tokens:,}",
        "tokens/s now": f"{state.tokens_per_second_now:,.0f}",
        "tokens/s on average": f"{state.tokens_per_second:,.0f}",
        "left": "unknown yet" if state.eta is None else describe_eta(state.eta),
        "basis": "" if state.eta is None else state.eta.basis,
        **{f"ended early: {kind}": f"{n:,}" for kind, n in state.failures.items()},
    }
    rows = [{"what": name, "value": value} for name, value in figures.items()]
    rows += [
        {
            # In code: Prefect's page would make a link of it.
            "what": f"`{load['endpoint']}`".replace("\n", " "),
            "value": f"{load['state']}, {load['in flight']} in flight of {load['slots']} slots, "
            f"{load['answered']:,} answered, {load['errors']:,} errors",
        }
        for load in tabulate_endpoints(state)
    ]
    return rows


def _draw_endpoints(state: RunProgress) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    grid.add_column(_INDENT[:-1])
    shown = tabulate_endpoints(state)
    for name in shown[0]:
        grid.add_column(name, justify="left" if name in {"endpoint", "state"} else "right")
    for load in shown[:_MOST_ENDPOINTS]:
        grid.add_row("", *(escape(f"{v:,}" if isinstance(v, int) else v) for v in load.values()))
    if len(shown) > _MOST_ENDPOINTS:
        grid.add_row("", f"and {len(shown) - _MOST_ENDPOINTS} more")
    return grid


def _note(text: str) -> Text:
    return Text(f"{_INDENT}{text}", style="dim")
