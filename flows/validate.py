"""The doctor as a flow of its own: what a run on this box would meet.

Enters: a configuration. Leaves: nothing, or EnvironmentFailed with every check that failed and its
remedy. A run's own look is flows/stages/preflight.py; on the command line
flows/command_line/doctor.py does the same without Prefect.
"""

from __future__ import annotations

import asyncio

from prefect import flow

from flows.config import ExpansionConfig
from flows.stages.box import profile_of
from flows.stages.surroundings import probe_source, probe_store, read_cache
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
