"""The fleet as a run borrows it: started when first needed, let go at every end.

Enters: a Run. Leaves: admitted endpoints. The servers belong to the supervisor; this holds a lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from prefect.runtime import flow_run

from flows.stages.opened import Run
from tasks.serving.lease import Lease
from tasks.serving.record import Endpoint, RenderingProbe
from tasks.serving.supervisor import end_lost_fleet
from tasks.serving.task import ensure_fleet

# Has a system turn, so that a template which drops or doubles it is found out.
_PROBE_MESSAGES = [
    {"role": "system", "content": "You answer briefly."},
    {"role": "user", "content": "What is 2 + 3?"},
]


class Fleet:
    """The servers of a run; nothing is started before `start`."""

    def __init__(self, run: Run, stack: ExitStack) -> None:
        self._run = run
        self._stack = stack
        self._starting: asyncio.Task[list[Endpoint]] | None = None

    def start(self) -> None:
        """Begin to bring the servers up, beside whatever else the run does."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._bring_up())

    async def endpoints(self) -> list[Endpoint]:
        """Wait for the servers.

        Raises:
            FleetFailed: A server never became healthy.
            NoEndpoint: Every server was refused.
        """
        self.start()
        assert self._starting is not None  # noqa: S101  (start made it)
        return await self._starting

    async def give_up(self) -> None:
        """Stop waiting for servers that nobody needs any more."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    async def _bring_up(self) -> list[Endpoint]:
        serving = self._run.config.serving
        if serving.mode == "launch":
            # Taken before the fleet starts, so that it cannot end in between.
            holder = str(flow_run.id or id(self))
            fleet_dir = self._run.settings.fleet_dir
            self._stack.callback(end_lost_fleet, fleet_dir)
            self._stack.enter_context(Lease(fleet_dir, holder, serving.lease_seconds))
        return await ensure_fleet(serving, self._run.model, make_probe(self._run))


@asynccontextmanager
async def borrow_fleet(run: Run) -> AsyncIterator[Fleet]:
    """Lend the fleet; at the end, however it comes, the lease is let go."""
    with ExitStack() as stack:
        fleet = Fleet(run, stack)
        try:
            yield fleet
        finally:
            await fleet.give_up()


def make_probe(run: Run) -> RenderingProbe:
    """Render the conversation by which servers are judged."""
    ids = run.template.render(_PROBE_MESSAGES, None, thinking=run.model.thinking)
    return RenderingProbe(messages=_PROBE_MESSAGES, prompt_token_ids=ids)
