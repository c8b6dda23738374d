"""The task that judges the box: uncached, because a box changes between two runs.

Enters: a BoxProfile, and verdicts that the flow reached elsewhere (store, sources). Leaves: all
verdicts. It exists to name and log what facts.py and checks.py do, and to stop a run early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from tasks.environment.checks import describe, judge
from tasks.environment.facts import read_facts
from tasks.environment.record import BoxProfile, Verdict
from tasks.errors import EnvironmentFailed


@task(
    name="validate-environment",
    task_run_name="validate environment",
    tags=["environment"],
    cache_policy=NO_CACHE,
    persist_result=False,
)
async def validate_environment(
    profile: BoxProfile, extra: Sequence[Verdict] = ()
) -> tuple[Verdict, ...]:
    """Read and judge the box; returns every verdict, `extra` last.

    Raises:
        EnvironmentFailed: if a check failed, with all that failed and what mends each.
    """
    logger = get_run_logger()
    facts = await asyncio.to_thread(read_facts, profile)
    verdicts = (*judge(facts, profile), *extra)
    for verdict in verdicts:
        log = logger.warning if verdict.status in ("warn", "fail", "unknown") else logger.info
        log("%s %s", verdict.status, describe(verdict))
    failed = [verdict for verdict in verdicts if verdict.status == "fail"]
    if failed:
        lines = "\n".join(f"  {describe(verdict)}" for verdict in failed)
        raise EnvironmentFailed(
            f"{len(failed)} of {len(verdicts)} checks failed:\n{lines}",
            checks=tuple(verdict.id for verdict in failed),
            remedy="Mend what is named above and run again.",
        )
    return verdicts
