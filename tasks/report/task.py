"""Reports as Prefect tasks: the page into the store, the headline into Prefect's artifacts.

Enters: figures; the store through `report_context`. Leaves: the page's key. Both tasks are uncached
and a page is written once: where one stands already, a rerun shows that one.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from prefect import get_run_logger, task
from prefect.artifacts import acreate_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.errors import KeyTaken
from tasks.report.composition import share
from tasks.report.inert import strip_controls
from tasks.report.page import render_canary, render_report
from tasks.report.record import CanaryFigures, GateFigure, ReportFigures
from tasks.report.wording import describe_losses, list_bands
from tasks.storage.layout import canary_key, report_key
from tasks.storage.store import ArtifactStore

_MOST_ROWS = 50


@dataclass(frozen=True, slots=True)
class ReportContext:
    """What the tasks of this room work with; set by the flow before it calls them."""

    store: ArtifactStore


report_context: ContextVar[ReportContext] = ContextVar("report_context")


@task(name="publish-report", cache_policy=NO_CACHE, persist_result=False)
async def publish_report(figures: ReportFigures) -> str:
    """Publish the report on a dataset revision (`page.render_report`); give its key."""
    key = report_key(figures.revision)
    await _publish(key, render_report, figures)
    await acreate_markdown_artifact(
        key=f"report-{artifact_slug(figures.name)}",
        markdown=write_summary(figures, key),
        description=f"Dataset r{figures.revision:04d}",
    )
    return key


@task(name="publish-canary", cache_policy=NO_CACHE, persist_result=False)
async def publish_canary(figures: CanaryFigures) -> str:
    """Publish the preview of the canary (`page.render_canary`); give its key."""
    key = canary_key()
    await _publish(key, render_canary, figures)
    await acreate_markdown_artifact(
        key=f"canary-{artifact_slug(figures.name)}",
        markdown=write_summary(figures, key),
        description="The canary: the whole road for the first chunk",
    )
    return key


async def _publish(key: str, render: Any, figures: ReportFigures | CanaryFigures) -> None:
    store = report_context.get().store
    if await store.run(store.head, key) is None:
        page = await asyncio.to_thread(render, figures)
        with suppress(KeyTaken):  # another run of the same request was quicker
            await store.run(store.create, key, page.encode())
    get_run_logger().info("%s/%s", store.uri, key)


def artifact_slug(name: str) -> str:
    """Turn a run's name into what Prefect takes as a key: lower case, digits, dashes."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return slug or sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def write_summary(figures: ReportFigures | CanaryFigures, key: str) -> str:
    """Write the headline as markdown; whatever a stranger wrote stands in code fences."""
    lines = [f"**{describe_losses(figures.counts)[0]}**", ""]
    if figures.simulated:
        lines += ["**The answers are simulated: invented text, no model was asked.**", ""]
    rows = [f"page         {figures.uri}/{key}"]
    rows += [f"{name:<24} {number:>14,}" for name, number in figures.counts.items()]
    rows += [f"failed: {kind:<16} {number:>14,}" for kind, number in figures.failures.items()]
    rows += [_write_gate(gate) for gate in figures.gates]
    if isinstance(figures, CanaryFigures) and figures.projection is not None:
        rows += [
            f"{name:<16} {low:>14} to {high:>14}, likely {middle}"
            for name, low, middle, high in list_bands(figures.projection)
        ]
        rows.append(f"it rests on {figures.projection.basis}")
    return "\n".join([*lines, _fence(rows[: 4 * _MOST_ROWS])])


def _write_gate(gate: GateFigure) -> str:
    value = share(gate.n_flagged, gate.n_judged)
    return f"gate: {gate.name:<18} {value:>14.2%} of at most {gate.threshold:.2%}"


def _fence(rows: list[str]) -> str:
    return "\n".join(["```text", *(_strip(row) for row in rows), "```"])


def _strip(text: str) -> str:
    """Leave no control character, no backtick that could end a fence, and no line break."""
    return strip_controls(text).replace("`", "'").replace("\n", " ").replace("\t", " ")
