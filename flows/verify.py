"""Verification as a flow, for a schedule: runs that are whole complete, others fail by name.

Enters: the configuration of a deployment, or a prefix. Leaves: a verdict on the run at the prefix
and on every run over one source below it, as a line of the log and a row of an artifact each, or
DatasetInvalid with each fault. It repairs nothing.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.logging import get_run_logger

from flows.config import ExpansionConfig
from flows.dataset.inspect import Place
from flows.dataset.verdict import RunVerdict, list_prefixes, parse_share, verify_run
from flows.pages.artifacts import put_artifact
from tasks.errors import DatasetInvalid, UserError
from tasks.report.task import artifact_slug
from tasks.storage.config import StoreConfig
from tasks.storage.task import load_credentials


@flow(name="verify", persist_result=False)
async def verify(
    config: ExpansionConfig | None = None, prefix: str | None = None, read_data: str = "100%"
) -> dict[str, Any]:
    """Hold every object that the newest manifest of each run names against it.

    Args:
        config: Names the store: its `store.uri`, endpoint and credentials. Verified are the run at
            `store.uri`, and every run over one source below it.
        prefix: Looked at instead of `store.uri` (s3://..., file://...): a root, or a run's own
            prefix. It is reached as the configuration's store is.
        read_data: Share of the objects that are read in full, such as 5%.

    Returns:
        The root, and the verdict on each run.

    Raises:
        DatasetInvalid: Faults were found, each with its prefix and what to do.
        UserError: No place is named, or no run is there.
    """
    share, place = parse_share(read_data), await _place(config, prefix)
    log = get_run_logger()
    verdicts: list[RunVerdict] = []
    for store in await asyncio.to_thread(list_prefixes, place):
        verdict = await asyncio.to_thread(verify_run, store, place.credentials, share)
        if verdict is None:
            continue
        verdicts.append(verdict)
        log.log(logging.ERROR if verdict.problems else logging.INFO, verdict.describe())
        for problem in verdict.problems:
            log.error("%s: %s", verdict.uri, problem)
    root = place.store.uri
    if not verdicts:
        raise UserError(
            "there is no run at this prefix, and none over one source below it",
            where=root,
            remedy="Give the store.uri that the runs were started with, or a run's own prefix.",
        )
    name = "prefix" if config is None else artifact_slug(config.name)
    await put_artifact(
        f"verification-{name}",
        "table",
        [verdict.tabulate() for verdict in verdicts],
        f"Verification of the runs at {root} and below",
    )
    _require_whole(verdicts)
    return {"root": root, "runs": [verdict.tabulate() for verdict in verdicts]}


async def _place(config: ExpansionConfig | None, prefix: str | None) -> Place:
    """Tell where the runs are, and how their store is opened; nothing need be protected."""
    if config is None and not prefix:
        raise UserError(
            "neither a configuration nor a prefix is named",
            where="the flow's parameters",
            remedy="Give `config`, whose store.uri is looked at, or `prefix`.",
        )
    # What is wrong with a uri, the store says best.
    store = StoreConfig.model_construct(uri=prefix or "") if config is None else config.store
    changes = {"protected": (), "uri": prefix or store.uri}
    store = store.model_copy(update=changes)
    return Place(store, await load_credentials(store), config)


def _require_whole(verdicts: Sequence[RunVerdict]) -> None:
    faulty = [verdict for verdict in verdicts if verdict.problems]
    if not faulty:
        return
    commands = (f"`draftmill repair {shlex.quote(verdict.uri)}`" for verdict in faulty)
    raise DatasetInvalid(
        f"{sum(len(verdict.problems) for verdict in faulty)} faults were found in {len(faulty)} of "
        f"{len(verdicts)} runs",
        problems=tuple(
            f"{verdict.uri}: {problem}" for verdict in faulty for problem in verdict.problems
        ),
        where=", ".join(verdict.uri for verdict in faulty),
        remedy=f"{', '.join(commands)}, or `draftmill repair` with the run's configuration where "
        "answers must be asked for again, makes revisions of what is damaged, and the next "
        "manifest.",
    )
