"""Rows of the tables on a run's page in Prefect: gates, failures, the mix, places. Pure.

Enters: counts, compositions, uris. Leaves: rows of strings, or markdown. What a stranger may have
written stands in code, where Prefect's page makes no link and no picture of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args
from urllib.parse import quote

from tasks.completions.config import Gate, GatesConfig
from tasks.report.composition import Composition, Tally, share
from tasks.report.inert import strip_controls
from tasks.storage.location import parse_uri

_MOST_ROWS = 50
# In a link's target these would end it, or begin something else.
_SAFE_IN_LINKS = "/:@?=&+,-._~%#"
_CONSOLE = "https://console.aws.amazon.com/s3"


def tabulate_gates(
    gates: GatesConfig, flagged: Mapping[str, int], n_judged: int
) -> list[dict[str, str]]:
    """Give each gate with its figures: flagged, share, threshold, and whether it is past it."""
    rows = []
    for gate in get_args(Gate):
        n, threshold = flagged.get(gate, 0), getattr(gates, gate)
        is_past = n > threshold * n_judged
        verdict = "accepted" if gate in gates.accept else "past it" if is_past else "within"
        rows.append(
            {
                "gate": gate,
                "flagged": f"{n:,} of {n_judged:,}",
                "share": f"{share(n, n_judged):.2%}",
                "threshold": f"{threshold:.2%}",
                "verdict": verdict,
            }
        )
    return rows


def tabulate_failures(failures: Mapping[str, int], n_all: int) -> list[dict[str, str]]:
    """Give each kind of failure with its count and share; one row says where there is none."""
    if not failures:
        return [{"kind": "none", "conversations": "0", "share": f"{0:.2%}"}]
    ordered = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"kind": strip_controls(kind), "conversations": f"{n:,}", "share": f"{share(n, n_all):.2%}"}
        for kind, n in ordered[:_MOST_ROWS]
    ]


def tabulate_mix(before: Composition, after: Composition) -> list[dict[str, str]]:
    """Give the domains and the sources by rows and supervised tokens, the largest first."""
    rows = []
    for what, old, new in (
        ("domain", before.by_domain, after.by_domain),
        ("source", before.by_source, after.by_source),
    ):
        names = sorted({*old, *new}, key=lambda name: (-_tokens(new, name), name))
        for name in names[:_MOST_ROWS]:
            one, other = old.get(name, Tally()), new.get(name, Tally())
            rows.append(
                {
                    "of": what,
                    "name": code(name),
                    "rows before": f"{one.n_rows:,}",
                    "rows after": f"{other.n_rows:,}",
                    "share of rows before": _percent(one.n_rows, before.total.n_rows),
                    "share of rows after": _percent(other.n_rows, after.total.n_rows),
                    "share of tokens before": _percent(
                        one.n_supervised_tokens, before.total.n_supervised_tokens
                    ),
                    "share of tokens after": _percent(
                        other.n_supervised_tokens, after.total.n_supervised_tokens
                    ),
                }
            )
    return rows


def write_places(places: Mapping[str, str], *, on_aws: bool) -> str:
    """Write where everything lies: a link to each, and its uri as a shell takes it."""
    lines = ["**Data and pages of the run**", ""]
    for name, uri in places.items():
        target = _find_page(uri) if on_aws else uri
        lines.append(f"- [{name}]({quote(target, safe=_SAFE_IN_LINKS)}) {code(uri)}")
    return "\n".join(lines)


def code(text: str) -> str:
    """Put text in a code span that it cannot end."""
    plain = strip_controls(text).replace("`", "'").replace("\n", " ").replace("\t", " ")
    return f"`{plain or ' '}`"


def _find_page(uri: str) -> str:
    """Give the page of AWS's console that shows an object, or a folder where a slash ends it."""
    if not uri.startswith("s3://"):
        return uri
    place = parse_uri(uri)
    if uri.endswith("/"):
        return f"{_CONSOLE}/buckets/{place.bucket}?prefix={quote(place.path)}/"
    return f"{_CONSOLE}/object/{place.bucket}?prefix={quote(place.path)}"


def _tokens(tallies: Mapping[str, Tally], name: str) -> int:
    return tallies[name].n_supervised_tokens if name in tallies else 0


def _percent(part: int, whole: int) -> str:
    return f"{share(part, whole):.1%}" if whole else "-"
