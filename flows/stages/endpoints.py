"""Servers that come late, come back and go while a run generates.

Enters: a Run and its dispatcher. Leaves: servers joined to it, once they pass the same probe as all
others. It exists because a run lasts for days: a server that was still loading when it began would
stay idle, and one that was restarted by hand may serve another model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

from flows.stages.fleet import make_probe
from flows.stages.opened import Run
from tasks.completions.dispatch import Dispatcher
from tasks.completions.probation import Probe
from tasks.serving.endpoint import connect_servers, probe_endpoint
from tasks.serving.record import Endpoint
from tasks.serving.supervisor import fleet_status

EVERY_SECONDS = 30.0


@asynccontextmanager
async def open_probe(run: Run) -> AsyncIterator[Probe]:
    """Give the probe of the run's servers: which model, how it renders, how it gives ids."""
    async with connect_servers(run.settings.server_api_key) as client:
        yield partial(
            probe_endpoint,
            client,
            model=run.model,
            slots=run.config.serving.slots,
            probe=make_probe(run),
        )


@asynccontextmanager
async def admit_latecomers(
    run: Run, dispatcher: Dispatcher, probe: Probe, every_seconds: float = EVERY_SECONDS
) -> AsyncIterator[None]:
    """Join the run's servers that were not admitted, as soon as they pass, inside the block."""

    async def look() -> None:
        while True:
            await asyncio.sleep(every_seconds)
            await _join_missing(run, dispatcher, probe, await asyncio.to_thread(_list_urls, run))

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


def _list_urls(run: Run) -> Iterable[str]:
    """Name the servers that the run attaches to, or those of its fleet that are ready now."""
    if run.config.serving.mode == "attach":
        return run.config.serving.urls
    fleet = fleet_status(run.settings.fleet_dir)
    servers = fleet.servers if fleet is not None and fleet.status == "running" else ()
    return [server.base_url for server in servers if server.status == "ready"]


async def _join_missing(
    run: Run, dispatcher: Dispatcher, probe: Probe, urls: Iterable[str]
) -> None:
    known = {load.base_url for load in dispatcher.loads()}
    missing = [url for url in (url.rstrip("/") for url in urls) if url not in known]
    for found in await asyncio.gather(*map(probe, missing)):
        if isinstance(found, Endpoint):
            dispatcher.join(found)
            run.narrator.note(f"{found.base_url} joined: {found.slots:,} slots")
