"""The doctor as part of a run, and as a flow of its own: before anything costs GPU time.

Enters: a Run, or a configuration. Leaves: nothing, or EnvironmentFailed with every check that
failed and its remedy. On the command line flows/doctor.py does the same without Prefect.
"""

from __future__ import annotations

import asyncio

from prefect import flow

from flows.box import profile_of
from flows.config import ExpansionConfig
from flows.opened import Run
from flows.surroundings import probe_source, probe_store, read_cache, read_skew
from tasks.environment.box_facts import SourceFacts, StoreFacts
from tasks.environment.record import Verdict
from tasks.environment.surroundings_checks import judge_surroundings
from tasks.environment.task import validate_environment
from tasks.settings import read_settings


@flow(name="validate", persist_result=False)
async def validate(config: ExpansionConfig) -> int:
    """Judge the box, the servers' environment, the sources and the store; repair nothing.

    Args:
        config: What a run on this box would be asked for.

    Returns:
        How many checks were made.

    Raises:
        EnvironmentFailed: At least one check failed; the table artifact shows all of them.
    """
    settings = read_settings()
    (store, cache), sources = await asyncio.gather(
        asyncio.gather(
            asyncio.to_thread(probe_store, config.store, settings),
            asyncio.to_thread(read_cache, config),
        ),
        asyncio.gather(
            *(asyncio.to_thread(probe_source, key, config, settings) for key in config.sources)
        ),
    )
    beyond = judge_surroundings(store, sources, *cache)
    return len(await validate_environment(profile_of(config, settings), beyond))


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
