"""The doctor as part of a run: before anything costs GPU time.

Enters: a Run. Leaves: nothing, or EnvironmentFailed with every check that failed and its remedy.
Apart from flows/validate.py, so that a run does not pay for the schema of that flow's form.
"""

from __future__ import annotations

import asyncio

from flows.stages.box import profile_of
from flows.stages.opened import Run
from flows.stages.surroundings import read_cache, read_skew
from tasks.environment.box_facts import SourceFacts, StoreFacts
from tasks.environment.record import Verdict
from tasks.environment.surroundings_checks import judge_surroundings
from tasks.environment.task import validate_environment


async def judge_environment(run: Run) -> None:
    """Validate the environment; a failure ends the run.

    Raises:
        EnvironmentFailed: At least one check failed.
    """
    beyond = await asyncio.to_thread(_judge_beyond, run)
    verdicts = await validate_environment(profile_of(run.config, run.settings), beyond)
    n_ok = sum(verdict.status == "ok" for verdict in verdicts)
    n_skipped = sum(verdict.status == "skip" for verdict in verdicts)
    run.narrator.stage("validate", f"{n_ok} checks passed, {n_skipped} do not apply here")
    for verdict in verdicts:
        if verdict.status in ("warn", "unknown"):
            run.narrator.note(f"{verdict.id}: {verdict.summary}")


def _judge_beyond(run: Run) -> tuple[Verdict, ...]:
    """Tell what opening the run has proved already; only clock and disk are asked anew."""
    store = StoreFacts(
        uri=run.store.uri, create_only=True, skew_seconds=read_skew(run.config.store)
    )
    sources = [
        SourceFacts(key=source.key, dataset=source.dataset, revision=source.revision)
        for source in run.sources
    ]
    return judge_surroundings(store, sources, *read_cache(run.config))
