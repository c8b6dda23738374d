"""How an ejected server comes back: it is asked, now and then, whether it is the same again.

Enters: members that were ejected. Leaves: word of each that may be tried again, with what it is
now. It exists because a server that died may come back as another one, with another model or
template, and would answer every request with HTTP 200.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from tasks.completions.client import Client
from tasks.completions.slot import Member
from tasks.serving.record import Endpoint, Refusal

_log = logging.getLogger(__name__)

Probe = Callable[[str], Awaitable[Endpoint | Refusal]]
"""Says what the server at a base url is now, or why it must not be used."""


class Probation:
    """Waits for ejected servers, each in a task of its own."""

    def __init__(
        self,
        client: Client,
        every_seconds: float,
        probe: Probe | None,
        take_back: Callable[[Member, Endpoint], None],
    ) -> None:
        """Take how to ask, how often, and who is told."""
        self._client = client
        self._every_seconds = every_seconds
        self._probe = probe
        self._take_back = take_back
        self._waiting: dict[str, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}

    def begin(self, member: Member) -> None:
        """Wait for a server that was just ejected."""
        url = member.endpoint.base_url
        self._waiting[url] = asyncio.create_task(self._wait_for(member))

    def forget(self, base_url: str) -> None:
        """Wait no more: it is back, or it left."""
        task = self._waiting.pop(base_url, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def aclose(self) -> None:
        """Wait for none."""
        waiting = list(self._waiting.values())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _wait_for(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._every_seconds)
            if not await self._client.is_healthy(member.endpoint):
                continue
            found = await self._ask(member.endpoint)
            if found is not None:
                self._take_back(member, found)
                return

    async def _ask(self, endpoint: Endpoint) -> Endpoint | None:
        if self._probe is None:
            return endpoint
        url = endpoint.base_url
        found = await self._probe(url)
        if isinstance(found, Endpoint):
            self._refused.pop(url, None)
            return found
        if self._refused.get(url) != found.reason:
            self._refused[url] = found.reason
            _log.warning("%s is back and not admitted: %s", url, found.reason)
        return None
