"""The last words of a run: where everything is, and the counts."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.process.speak import table

_ROWS = (
    ("n_source_rows", "rows read"),
    ("n_rejected", "rejected, with reason"),
    ("n_not_sampled", "not sampled"),
    ("n_duplicates", "duplicates across sources"),
    ("n_prompts", "prompts"),
    ("n_conversations", "conversations"),
    ("n_completed", "completed"),
    ("n_truncated", "truncated"),
    ("n_partial", "partial"),
    ("n_failed", "failed"),
    ("n_retried", "asked anew by retries"),
    ("n_output_tokens", "output tokens"),
    ("n_samples", "training samples"),
    ("n_base_rows", "rows of the base dataset"),
    ("n_dataset_rows", "rows of the dataset"),
)


def describe_summary(summary: dict[str, Any]) -> RenderableType:
    """Lay the summary out."""
    if summary["state"] == "AwaitingReview":
        return describe_review(summary)
    if summary["state"] == "NothingNew":
        earlier = (escape(f"  {show_place(uri)}") for uri in summary["earlier"])
        return Group("", "nothing new: earlier runs met every row of the sources", *earlier)
    counts = summary["counts"]
    n_lost = counts["n_failed"] + counts["n_partial"]
    head = (
        f"{n_lost:,} of {counts['n_conversations']:,} conversations failed or are partial"
        if n_lost
        else f"all {counts['n_conversations']:,} conversations are whole"
    )
    simulated = (
        ["The answers are SIMULATED: invented text, no model."] if summary["simulated"] else []
    )
    places = [(name, summary[name]) for name in ("dataset", "manifest", "report", "canary")]
    return Group(
        "",
        head,
        *simulated,
        "",
        table(("", ""), [(label, f"{counts[key]:>9,}") for key, label in _ROWS if key in counts]),
        "",
        table(
            ("code in the mix", "rows", "supervised tokens"), _list_shares(summary["composition"])
        ),
        "",
        *(escape(f"{name:<9} {show_place(place)}") for name, place in places),
    )


def describe_review(summary: dict[str, Any]) -> RenderableType:
    """Say where the canary is, and the command that goes on."""
    return Group(
        "",
        "the run waits: look at its canary first",
        escape(f"canary    {show_place(summary['canary'])}"),
        escape("go on     " + summary["command"]),
    )


def show_place(uri: str) -> str:
    """Write a file's uri as the path that a shell takes; another uri as it is."""
    path = uri.removeprefix("file://")
    return uri if path == uri else unquote(path, errors="surrogateescape")


def _list_shares(composition: dict[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for when in ("before", "after"):
        domains = composition[when]["by_domain"]
        code = domains.get("code", {"n_rows": 0, "n_supervised_tokens": 0})
        shares = []
        for key in ("n_rows", "n_supervised_tokens"):
            whole = sum(tally[key] for tally in domains.values())
            shares.append(f"{code[key] / whole:.0%}" if whole else "-")
        rows.append((when, *shares))
    return [(when, by_rows, by_tokens) for when, by_rows, by_tokens in rows]
