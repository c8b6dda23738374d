"""The mix without generating: what is there, what would be taken, and what cannot be reached.

Enters: an ExpansionConfig. Leaves: a table by domain, a bar a domain, the caps of each source. It
exists so that a share that cannot be had is known before the GPUs start.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.command_line.rehearse import rehearse
from flows.config import ExpansionConfig
from flows.process.speak import table
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import MixSolution

_BAR = 40


def show_mix(config: ExpansionConfig) -> dict[str, Any]:
    """Extract, deduplicate and solve.

    Raises:
        UserError: A source, the model or the store cannot be had.
        BaseDatasetError: The base dataset cannot be read.
    """
    with rehearse(config) as rehearsal:
        plan, base = rehearsal.plan, rehearsal.base_rows
        taken: Counter[str] = Counter()
        caps: Counter[tuple[str, str]] = Counter()
        for chunk in plan.chunks:
            for prompt in read_chunk(rehearsal.scratch, chunk):
                taken[prompt.domain] += 1
                caps[prompt.source.key, prompt.domain] += 1
    solution, wanted = plan.mix, config.extraction.mix
    targets = {} if wanted is None else wanted.targets
    domains = sorted({*base, *taken, *targets})
    n_before, n_after = sum(base.values()), sum(base.values()) + sum(taken.values())
    return {
        "domains": [
            {
                "domain": domain,
                "base_rows": base.get(domain, 0),
                "new_rows": taken[domain],
                "before": base.get(domain, 0) / n_before if n_before else None,
                "after": (base.get(domain, 0) + taken[domain]) / n_after if n_after else None,
                "target": targets.get(domain),
            }
            for domain in domains
        ],
        "caps": _list_caps(solution, caps),
        "solution": None if solution is None else solution.model_dump(mode="json"),
        "n_prompts": plan.n_prompts,
        "n_duplicates": plan.n_duplicates,
        "n_near_duplicates": plan.n_near_duplicates,
        "n_outside_mix": plan.n_outside_mix,
        "unreachable": [] if solution is None else list(solution.unreachable),
    }


def describe_mix(found: dict[str, Any]) -> RenderableType:
    """Lay the mix out: a table, a plot, the caps."""
    rows = [
        (
            one["domain"],
            f"{one['base_rows']:,}",
            f"{one['new_rows']:,}",
            _show_share(one["before"]),
            _show_share(one["after"]),
            _show_share(one["target"]),
        )
        for one in found["domains"]
    ]
    caps = [
        (cap["source"], cap["domain"], f"{cap['n_available']:,}", f"{cap['n_taken']:,}")
        for cap in found["caps"]
    ]
    parts: list[RenderableType] = [
        table(("domain", "base rows", "new rows", "before", "after", "target"), rows),
        "",
        table(("", "", ""), [line for one in found["domains"] for line in _draw(one)]),
        "",
        table(("source", "domain", "available", "taken"), caps),
        "",
        f"{found['n_prompts']:,} prompts; {found['n_duplicates']:,} duplicates across sources "
        f"({found['n_near_duplicates']:,} near ones), {found['n_outside_mix']:,} outside the mix",
    ]
    solution = found["solution"]
    if solution is not None and solution["unit"] == "tokens":
        parts += ["", _describe_tokens(solution)]
    for reason in found["unreachable"]:
        parts.append(escape(f"not reached: {reason}"))
    return Group(*parts)


def _list_caps(
    solution: MixSolution | None, caps: Counter[tuple[str, str]]
) -> list[dict[str, Any]]:
    if solution is not None:
        return [cap.model_dump(mode="json") for cap in solution.caps]
    return [
        {"source": source, "domain": domain, "n_available": n, "n_taken": n}
        for (source, domain), n in sorted(caps.items())
    ]


def _describe_tokens(solution: dict[str, Any]) -> RenderableType:
    rows = [
        (
            share["domain"],
            f"{share['base']:,.0f}",
            f"{share['taken']:,.0f}",
            _show_share(share["before"]),
            _show_share(share["after"]),
            _show_share(share["target"]),
        )
        for share in solution["shares"]
    ]
    head = ("supervised tokens", "base", "new, expected", "before", "after", "target")
    return table(head, rows)


def _draw(one: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Draw a bar for the share before and one for the share after; the target is a mark."""
    lines: list[tuple[str, str, str]] = []
    for name, fill in (("before", "░"), ("after", "█")):
        share = one[name]
        if share is None:
            continue
        bar = list((fill * round(share * _BAR)).ljust(_BAR))
        if one["target"] is not None:
            bar[min(round(one["target"] * _BAR), _BAR - 1)] = "┃"
        lines.append((one["domain"] if not lines else "", name, "".join(bar)))
    return lines


def _show_share(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"
