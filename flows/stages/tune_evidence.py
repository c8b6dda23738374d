"""What a tuning found, for people and for the next run: table, plot, and the winner's profile.

Enters: ranked results and the winner's settings. Leaves: rows, an SVG, and a YAML file that holds
the evidence as comments: whoever runs it later can see what it was chosen over, and by how much.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from flows.config import ExpansionConfig
from tasks.serving.config import ServingConfig
from tasks.serving.trial import TrialResult

_BAR = 46
_ROW, _LEFT, _WIDTH, _TEXT = 28, 330, 420, 110


def tabulate(results: Sequence[TrialResult]) -> list[dict[str, Any]]:
    """Give the results as rows of a table, in their order."""
    return [
        {
            "rank": number if not result.error else "-",
            "candidate": result.name,
            "tokens/s": f"{result.tokens_per_second:,.0f}" if not result.error else "",
            "±": f"{result.relative_error:.1%}" if not result.error else "",
            "running": f"{result.n_running:.0f}" if not result.error else "",
            "retracted": result.n_retracted if not result.error else "",
            "KV used": f"{result.token_usage:.0%}" if not result.error else "",
            "failed": result.error.splitlines()[0] if result.error else "",
        }
        for number, result in enumerate(results, 1)
    ]


def draw_bars(results: Sequence[TrialResult]) -> str:
    """Draw the speeds as text."""
    best = max((result.tokens_per_second for result in results), default=0) or 1
    lines = []
    for result in results:
        bar = "█" * round(_BAR * result.tokens_per_second / best)
        shown = f"{result.tokens_per_second:,.0f}" if not result.error else "failed"
        lines.append(f"{result.name:<44.44} {bar:<{_BAR}} {shown}")
    return "\n".join(lines)


def plot_svg(results: Sequence[TrialResult], title: str) -> str:
    """Plot the speeds with their standard errors; nothing in it runs or is fetched."""
    best = max((result.tokens_per_second for result in results), default=0) or 1
    height = _ROW * (len(results) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + _TEXT}" '
        f'height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        f'<text x="8" y="19" font-weight="bold">{escape(title)}</text>',
    ]
    for number, result in enumerate(results, 1):
        top = _ROW * number + 4
        long = _WIDTH * result.tokens_per_second / best
        spread = long * result.relative_error
        label = escape(result.name[:48])
        parts.append(f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{label}</text>')
        if result.error:
            parts.append(f'<text x="{_LEFT}" y="{top + 15}" fill="#a33">failed</text>')
            continue
        fill = "#2a6f97" if number == 1 else "#a9c6d8"
        parts += [
            f'<rect x="{_LEFT}" y="{top}" width="{long:.1f}" height="20" fill="{fill}"/>',
            f'<line x1="{_LEFT + long - spread:.1f}" x2="{_LEFT + long + spread:.1f}" '
            f'y1="{top + 10}" y2="{top + 10}" stroke="#333"/>',
            f'<text x="{_LEFT + long + spread + 6:.1f}" y="{top + 15}">'
            f"{result.tokens_per_second:,.0f}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def write_profile(
    config: ExpansionConfig,
    winner: ServingConfig,
    results: Sequence[TrialResult],
    *,
    how: str,
    path: Path,
) -> None:
    """Write the configuration with the winner's settings; `how` tells when and on what."""
    speed = round(results[0].tokens_per_second, 1)
    outlook = winner.outlook.model_copy(update={"server_tokens_per_second": speed})
    base = config.serving
    serving = winner.model_copy(
        update={
            "n_servers": base.n_servers,
            "gpus": base.gpus,
            "base_port": base.base_port,
            "max_restarts": base.max_restarts,
            "outlook": outlook,
        }
    )
    tuned = config.model_copy(update={"serving": serving})
    values = tuned.model_dump(mode="json", exclude_defaults=True)
    stream = io.StringIO()
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 10_000
    yaml.dump(values, stream)
    lines = [f"Tuned by measurement: {how}", ""]
    lines += [
        " · ".join(f"{key} {value}" for key, value in row.items() if value != "")
        for row in tabulate(results)
    ]
    comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    with path.open("x", encoding="utf-8") as file:
        file.write(comment + stream.getvalue())
