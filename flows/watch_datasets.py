"""Watches the sources for new versions and tells Prefect of each one, once.

Enters: the configuration of a run. Leaves: an event `dataset.version.published` for each source
whose newest revision was not seen before; a trigger starts the expansion of that source from it.
The last seen revision stands in a Prefect Variable, written only after the event went out: a watch
that dies in between tells it again, and a run that is told twice resumes its own prefix. Another
Variable stands for as long as a source is out of reach: people are told of it once an episode.
"""

from __future__ import annotations

import asyncio
import re
from hashlib import sha256
from typing import Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.events.clients import get_events_client
from prefect.events.schemas.events import Event, Resource
from prefect.states import Completed, Failed
from prefect.variables import Variable

from flows.config import ExpansionConfig
from flows.configuration.complete import complete_sources, secret_of
from flows.stages.remote import fetch_sources
from tasks.errors import SourceError, StoreError
from tasks.prompts.config import SourceConfig
from tasks.prompts.record import ResolvedSource
from tasks.prompts.sources import resolve_source
from tasks.settings import Settings, read_settings
from tasks.storage.store import S3Credentials
from tasks.storage.task import load_credentials

EVENT = "dataset.version.published"
STILL_UNREACHABLE = "StillUnreachable"


@flow(name="watch-datasets", persist_result=False)
async def watch_datasets(config: ExpansionConfig) -> State[dict[str, str]]:
    """Look at the newest revision of each source and announce those that are new.

    A source that is pinned to a revision is not watched. One source that cannot be reached keeps
    no other from being watched; the flow then fails at the end, naming it. Where each was out of
    reach before, the failed state is named StillUnreachable, and no notice is sent.

    Args:
        config: The configuration of the runs that the events start.

    Returns:
        A state with the announced revisions by source; NothingNew where there are none.
    """
    logger = get_run_logger()
    settings = read_settings()
    credentials = await load_credentials(config.store)
    announced: dict[str, str] = {}
    faults: list[str] = []
    is_told = True
    for key, source in complete_sources(config).sources.items():
        if source.revision is not None:
            logger.info("%s is pinned to %s: not watched", key, source.revision)
            continue
        try:
            newest = await asyncio.to_thread(_resolve, config, key, source, credentials, settings)
        except (SourceError, StoreError) as error:
            faults.append(f"{key}: {error}")
            unreachable = name_variable(config.name, key, "unreachable")
            if await Variable.aget(unreachable) is None:
                is_told = False
                await Variable.aset(unreachable, True, overwrite=True)
            continue
        await Variable.aunset(name_variable(config.name, key, "unreachable"))
        name = name_variable(config.name, key)
        if await Variable.aget(name) == newest.revision:
            continue
        await announce(source, newest)
        await Variable.aset(name, newest.revision, overwrite=True)
        announced[key] = newest.revision
        logger.info("%s has a new version: %s", key, newest.revision)
    if faults:
        state = STILL_UNREACHABLE if is_told else "Failed"
        return Failed(name=state, message="; ".join(faults), data=announced)
    if not announced:
        return Completed(name="NothingNew", message="no source has a new version", data={})
    return Completed(message=f"new versions of {', '.join(announced)}", data=announced)


def _resolve(
    config: ExpansionConfig,
    key: str,
    source: SourceConfig,
    credentials: S3Credentials | None,
    settings: Settings,
) -> ResolvedSource:
    """Find the newest revision; an object on S3 is fetched, and known by its hash."""
    alone = config.model_copy(update={"sources": {key: source}})
    fetched = fetch_sources(alone, credentials, settings.home).sources[key]
    return resolve_source(key, fetched, secret_of(settings))


async def announce(source: SourceConfig, newest: ResolvedSource) -> None:
    """Send the event, and return when the server has it."""
    event = Event(
        event=EVENT,
        resource=Resource(
            {
                "prefect.resource.id": f"dataset.{newest.key}",
                "prefect.resource.name": newest.dataset,
            }
        ),
        payload={
            "source": newest.key,
            "revision": newest.revision,
            "dataset": newest.dataset,
            "local": source.path is not None,
        },
    )
    async with get_events_client() as client:
        await client.emit(event)


def name_variable(
    run_name: str, source_key: str, what: Literal["seen", "unreachable"] = "seen"
) -> str:
    """Name the Variable that holds the last seen revision of a source, or that it is out of reach.

    Two names that look alike after Prefect's rules for names still differ.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", source_key.lower()).strip("_")[:60]
    digest = sha256(f"{run_name}\0{source_key}".encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"draftmill_{what}_{plain}_{digest}"
