"""What Prefect's page of a run shows besides progress: where everything lies, and how it came out.

Enters: what a run is at its beginning, and at each of its ends. Leaves: artifacts of stable keys:
`places-NAME` (links to store, report and dataset), `composition-NAME`, `gates-NAME`,
`failures-NAME`. With those of flows/pages/artifacts.py and the tables of environment, fleet, canary
and report they tell the run to a person who reads no log.
"""

from __future__ import annotations

import os
from typing import Any

from flows.config import ExpansionConfig
from flows.pages.artifacts import put_artifact
from flows.pages.report import add_up, measure_gates
from flows.pages.tables import code, tabulate_failures, tabulate_gates, tabulate_mix, write_places
from tasks.completions.survey import count_superseded
from tasks.errors import StoppedByGate
from tasks.prompts.record import Plan
from tasks.report.composition import Composition
from tasks.report.task import artifact_slug
from tasks.storage.layout import canary_key
from tasks.storage.retry import Standing
from tasks.storage.store import ArtifactStore

_PLACES = ("report", "canary", "dataset", "manifest")
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


async def show_places(config: ExpansionConfig, uri: str, summary: dict[str, Any]) -> None:
    """Show where the run lies, and of what its summary names already, where that lies."""
    places = {name: summary[name] for name in _PLACES if name in summary} | {"store": f"{uri}/"}
    is_aws = config.store.s3.endpoint_url is None and not any(
        os.environ.get(name) for name in _ENDPOINT_VARIABLES
    )
    await put_artifact(
        f"places-{artifact_slug(config.name)}",
        "markdown",
        write_places(places, on_aws=is_aws),
        "Where the run's data and pages lie",
    )


async def show_end(
    config: ExpansionConfig,
    store: ArtifactStore,
    plan: Plan,
    standing: Standing,
    summary: dict[str, Any],
) -> None:
    """Show how a run came out: places, mix, gates and failures, as the store has them."""
    slug = artifact_slug(config.name)
    await show_places(config, store.uri, summary)
    before, after = (
        Composition.model_validate(summary["composition"][when]) for when in ("before", "after")
    )
    await put_artifact(
        f"composition-{slug}",
        "table",
        tabulate_mix(before, after),
        "Rows and supervised tokens by domain and source, before and after the merge",
    )
    footers = [part.footer for part in standing.all_parts]
    gone = (await store.run(count_superseded, store, plan, standing, config.gates)).values()
    figures = measure_gates(config.gates, footers, list(gone))
    await put_artifact(
        f"gates-{slug}",
        "table",
        tabulate_gates(config.gates, {f.name: f.n_flagged for f in figures}, figures[0].n_judged),
        "Quality gates over all answers that count",
    )
    failures = add_up(footer.failures for footer in footers)
    left = {kind: n - add_up(g.failures for g in gone).get(kind, 0) for kind, n in failures.items()}
    await put_artifact(
        f"failures-{slug}",
        "table",
        tabulate_failures(
            {kind: n for kind, n in left.items() if n > 0}, summary["counts"]["n_conversations"]
        ),
        "Failed and partial conversations by kind",
    )


async def show_stop(config: ExpansionConfig, uri: str, stopped: StoppedByGate) -> None:
    """Show the gates that stopped a run, with figures and ids, and the two ways on."""
    lines = [f"- {code(verdict)}" for verdict in stopped.verdicts]
    await put_artifact(
        f"stopped-{artifact_slug(config.name)}",
        "markdown",
        "\n".join(["**A quality gate stopped the run.**", "", *lines, "", code(stopped.remedy)]),
        "Gates that are past their thresholds, and how to go on",
    )
    await show_places(config, uri, {"canary": f"{uri}/{canary_key()}"})
