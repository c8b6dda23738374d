"""The task that judges the box: uncached, because a box changes between two runs.

Enters: a BoxProfile, and verdicts that the flow reached elsewhere (store, sources). Leaves: all
verdicts, and a table of them among Prefect's artifacts. It exists to name and log what facts.py and
checks.py do, and to stop a run early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prefect import get_run_logger, task
from prefect.artifacts import acreate_table_artifact
from prefect.cache_policies import NO_CACHE

from tasks.environment.checks import describe, judge
from tasks.environment.facts import read_facts
from tasks.environment.record import BoxProfile, Verdict
from tasks.errors import EnvironmentFailed

ARTIFACT = "environment"


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
    facts = await asyncio.to_thread(
        read_facts, profile, lambda name, n_done, n_all: logger.info("%s read", name)
    )
    verdicts = (*judge(facts, profile), *extra)
    for verdict in verdicts:
        if verdict.status == "skip":
            continue  # dozens where others run the servers; the table has them
        log = logger.warning if verdict.status in ("warn", "fail", "unknown") else logger.info
        log("%s %s", verdict.status, describe(verdict))
    await acreate_table_artifact(
        key=ARTIFACT, table=tabulate(verdicts), description="What the doctor found on the box"
    )
    require_sound(verdicts)
    return verdicts


def tabulate(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """Lay verdicts out as rows of a table artifact."""
    return [
        {
            "check": verdict.id,
            "status": verdict.status,
            "found": verdict.summary,
            "fix": f"{verdict.fix.what} {' '.join(verdict.fix.argv)}".strip()
            if verdict.fix
            else "",
        }
        for verdict in verdicts
    ]


def require_sound(verdicts: Sequence[Verdict]) -> None:
    """Raise if a check failed.

    Raises:
        EnvironmentFailed: With all that failed and what mends each.
    """
    failed = [verdict for verdict in verdicts if verdict.status == "fail"]
    if failed:
        lines = "\n".join(f"  {describe(verdict)}" for verdict in failed)
        raise EnvironmentFailed(
            f"{len(failed)} of {len(verdicts)} checks failed:\n{lines}",
            checks=tuple(verdict.id for verdict in failed),
            remedy="Mend what is named above and run again.",
        )
