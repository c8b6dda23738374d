"""Which server takes the next request.

Enters: admitted Endpoints, and requests for a slot. Leaves: slots, as async context managers, on
the server with the least in flight relative to its size. It exists because balancing requests, not
chunks, is what keeps every GPU busy: a chunk that owned a server would leave it idle in its tail.
A server that fails time after time is ejected, asked for its health after a while, and lets one
request through before it counts again. Older chunks are served first, so that they finish first.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from pydantic import SecretStr

from tasks.completions.client import Client
from tasks.completions.config import GenerationConfig
from tasks.completions.garbage import collect_rarely
from tasks.completions.probation import Probation, Probe
from tasks.completions.roster import EndpointLoad, Roster
from tasks.completions.slot import Member, Order, RouteGone, Slot, Waiter
from tasks.completions.window import ChunkWindow
from tasks.errors import NoEndpoint
from tasks.serving.record import Capability, Endpoint

_log = logging.getLogger(__name__)


class Dispatcher:
    """Shares requests over servers. Use it as an async context manager."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        config: GenerationConfig,
        *,
        api_key: SecretStr | None = None,
        client: Client | None = None,
        probe: Probe | None = None,
    ) -> None:
        """Take the servers.

        Args:
            endpoints: Servers that were admitted.
            config: Limits and waits.
            api_key: The servers' bearer key.
            client: Made from the key unless one is given.
            probe: Asked of a server that returns and may have changed; without it, health decides.

        Raises:
            ValueError: a server gives no exact ids.
        """
        self._config = config
        self.client = client or Client(api_key)
        self._roster = Roster()
        self._versions: dict[str, str] = {}
        self._waiting: list[tuple[Order, int, Waiter]] = []
        self._numbers = itertools.count()
        self._probation = Probation(
            self.client, config.return_after_seconds, probe, self._take_back
        )
        self._drained: asyncio.Event | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self._given_up: NoEndpoint | None = None
        self._while_open = ExitStack()
        self.window = ChunkWindow(lambda: self._roster.capacity, lambda: len(self._waiting))
        for endpoint in endpoints:
            self._add(endpoint)

    async def __aenter__(self) -> Self:
        self._while_open.enter_context(collect_rarely())
        self._watch()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._while_open:
            if self._giving_up is not None:
                self._giving_up.cancel()
            await self._probation.aclose()
            await self.client.aclose()

    @property
    def capacity(self) -> int:
        """Requests in flight when every server is full, ejected ones included."""
        return self._roster.capacity

    @property
    def n_in_flight(self) -> int:
        """Slots held now."""
        return sum(member.n_outstanding for member in self._roster)

    def loads(self) -> tuple[EndpointLoad, ...]:
        """Say how each server stands now."""
        return self._roster.loads()

    @property
    def server_versions(self) -> Mapping[str, str]:
        """Version by base url, of every server that was ever here."""
        return self._versions

    def slot(
        self,
        order: Order,
        *,
        avoid: Collection[str] = (),
        route: Capability | None = None,
    ) -> Slot:
        """Wait for a place at a server: `async with dispatcher.slot(order) as slot`.

        Args:
            order: Who goes first; lower is earlier.
            avoid: Base urls passed over while another server is up.
            route: Only servers with this way to exact ids.

        Raises:
            NoEndpoint: on entering, when none was admitted for `no_endpoint_seconds`.
            RouteGone: on entering, when no server here has the route.
        """
        return Slot(self, order, avoid, route)

    def join(self, endpoint: Endpoint) -> None:
        """Add a server, or bring back one that left.

        Raises:
            ValueError: the server gives no exact ids.
        """
        self._add(endpoint)
        self._given_up = None
        self._watch()
        self._grant()

    def leave(self, base_url: str) -> None:
        """Give a server no more requests; those in flight end there."""
        self._roster.remove(base_url)
        self._probation.forget(base_url)
        self._tell_route_gone()
        self._watch()
        self._grant()

    def _tell_route_gone(self) -> None:
        for _, _, waiter in self._waiting:
            if self._roster.lacks(waiter.route):
                waiter.fail(RouteGone(waiter.route))

    def _add(self, endpoint: Endpoint) -> None:
        limit = endpoint.slots + math.ceil(endpoint.slots * self._config.surplus)
        if self._roster.add(endpoint, limit):
            self._versions[endpoint.base_url] = endpoint.server_version

    async def acquire(
        self, order: Order, avoid: Collection[str], route: Capability | None
    ) -> Member:
        """Wait for a place, for a Slot that is entered.

        Raises:
            NoEndpoint: none was admitted for `no_endpoint_seconds`.
            RouteGone: no server here has the route.
        """
        if self._given_up is not None:
            raise self._given_up
        if self._roster.lacks(route):
            raise RouteGone(route)
        if not self._waiting and self._drained is None:
            member = self._roster.choose(avoid, route)
            if member is not None:
                member.n_outstanding += 1
                return member
        future: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        waiter = Waiter(future, avoid, route)
        heapq.heappush(self._waiting, (order, next(self._numbers), waiter))
        self._grant()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The slot was given in the same turn of the loop in which the waiter was cancelled.
                self.release(future.result())
            raise

    def release(self, member: Member) -> None:
        """Give a place back, for a Slot that is left."""
        member.n_outstanding -= 1
        if self._drained is not None and not self.n_in_flight:
            self._drained.set()
        self._grant()

    async def drain(self, seconds: float) -> int:
        """Give no more slots, and wait for the requests in flight.

        Who waits for a slot waits on: the caller ends what it runs afterwards.

        Returns:
            How many are in flight still, after `seconds`.
        """
        self._drained = asyncio.Event()
        if self.n_in_flight:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), seconds)
        return self.n_in_flight

    def _grant(self) -> None:
        """Give free slots to the first waiters that can take them."""
        passed_over: list[tuple[Order, int, Waiter]] = []
        while self._waiting and self._drained is None and self._roster.has_room():
            entry = heapq.heappop(self._waiting)
            waiter = entry[2]
            if waiter.future.done():
                continue
            member = self._roster.choose(waiter.avoid, waiter.route)
            if member is None:
                passed_over.append(entry)
                continue
            member.n_outstanding += 1
            waiter.future.set_result(member)
        for entry in passed_over:
            heapq.heappush(self._waiting, entry)
        self.window.update()

    def admit(self, member: Member) -> None:
        """Note an answer, for a Slot: failures are forgotten, a trial is passed."""
        member.n_failures = 0
        member.n_answered += 1
        if member.state != "admitted" and member in self._roster:
            member.state = "admitted"
            self._probation.forget(member.endpoint.base_url)
            _log.info("%s is admitted again", member.endpoint.base_url)
            self._watch()
            self._grant()

    def blame(self, member: Member, *, refused: bool) -> bool:
        """Note a failure, for a Slot; tell whether the server is ejected now."""
        member.n_failures += 1
        member.n_errors += 1
        if member.state == "ejected":
            return True
        # On trial, one failure is enough.
        if refused or member.state == "trial" or member.n_failures >= self._config.eject_after:
            member.state = "ejected"
            url = member.endpoint.base_url
            _log.warning("%s is ejected after %d failures in a row", url, member.n_failures)
            if member in self._roster:
                self._probation.begin(member)
                self._watch()
                # Who avoided another server may have no better choice now.
                self._grant()
        return member.state == "ejected"

    def _take_back(self, member: Member, found: Endpoint) -> None:
        """Try a server that is there again; one that has changed begins anew."""
        self._given_up = None
        if found == member.endpoint:
            member.state = "trial"
            self._watch()
            self._grant()
        else:
            _log.warning("%s has changed: %s", found.base_url, found)
            # No leave in between: conversations on a route that it still has go on.
            self._roster.remove(found.base_url)
            self.join(found)
            self._tell_route_gone()

    def _watch(self) -> None:
        """Let the clock towards NoEndpoint run while no server is admitted, and only then."""
        if any(member.state == "admitted" for member in self._roster):
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        elif self._giving_up is None:
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(self._config.no_endpoint_seconds, self._give_up)

    def _give_up(self) -> None:
        if any(member.state == "trial" and member.n_outstanding for member in self._roster):
            # Its answer decides: an admission stops the clock, a failure leaves it run out.
            self._giving_up = asyncio.get_running_loop().call_later(1.0, self._give_up)
            return
        self._giving_up = None
        self._given_up = NoEndpoint(
            f"no server answered for {self._config.no_endpoint_seconds:.0f} s",
            where=", ".join(sorted(self._versions)) or "no endpoints",
            remedy="See that the servers run (draftmill servers status), then run again: "
            "what is finished is kept in the journals.",
        )
        waiting, self._waiting = self._waiting, []
        for _, _, waiter in waiting:
            waiter.fail(self._given_up)
