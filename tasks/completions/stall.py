"""Finds servers that hold requests and generate nothing, and takes the requests back.

Enters: a dispatcher's loads and each busy server's /metrics. Leaves: word to the client to give a
server's requests up; they go to other servers, and the server is ejected until it answers a probe
again. It exists because such a server answers /health, and each of its requests would wait for a
deadline of an hour. A server without metrics is left to the deadline.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tasks.completions.dispatch import Dispatcher
from tasks.serving.metrics import StallWatch, read_load

_log = logging.getLogger(__name__)

_READINGS_PER_STALL = 6
_LONGEST_READING_SECONDS = 15.0


@asynccontextmanager
async def watch_stalls(dispatcher: Dispatcher, stall_seconds: float) -> AsyncIterator[None]:
    """Watch a dispatcher's servers while the block runs."""
    watching = asyncio.create_task(_watch(dispatcher, stall_seconds))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(dispatcher: Dispatcher, stall_seconds: float) -> None:
    every = min(stall_seconds / _READINGS_PER_STALL, _LONGEST_READING_SECONDS)
    watches: dict[str, StallWatch] = {}
    while True:
        await asyncio.sleep(every)
        busy = [
            load.base_url
            for load in dispatcher.loads()
            if load.n_in_flight and load.state != "ejected"
        ]
        # One that was idle or ejected in between begins anew.
        watches = {url: watches.get(url) or StallWatch(stall_seconds) for url in busy}
        await asyncio.gather(*(_look(dispatcher, url, watches[url], every) for url in busy))


async def _look(dispatcher: Dispatcher, url: str, watch: StallWatch, seconds: float) -> None:
    text = await dispatcher.client.read_metrics(url, seconds)
    load = read_load(text) if text else None
    if load is not None and watch.note(load, asyncio.get_running_loop().time()):
        _log.warning("%s holds %d requests and generates nothing", url, load.n_in_flight)
        dispatcher.client.give_up_on(url)
