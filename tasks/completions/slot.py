"""One request's place at a server.

Enters: a dispatcher that grants places. Leaves: a Slot, an async context manager whose end gives
the place back whatever happened inside, so that none can leak.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from tasks.serving.record import Capability, Endpoint

State = Literal["admitted", "trial", "ejected"]
Order = tuple[int, int]
"""Chunk and place in it: lower ones are served first."""


class RouteGone(Exception):
    """No server of the dispatcher has the route that a conversation began on."""


@dataclass(slots=True, eq=False)
class Member:
    """A server of the dispatcher and what is in flight there."""

    endpoint: Endpoint
    limit: int
    state: State = "admitted"
    n_outstanding: int = 0
    n_failures: int = 0
    n_answered: int = 0
    n_errors: int = 0

    @property
    def has_room(self) -> bool:
        """Whether it may get another request now; on trial, one at a time."""
        if self.state == "admitted":
            return self.n_outstanding < self.limit
        return self.state == "trial" and self.n_outstanding == 0

    @property
    def load(self) -> float:
        """What is in flight, relative to the server's size."""
        return self.n_outstanding / self.endpoint.slots


@dataclass(slots=True, eq=False)
class Waiter:
    """A request that waits for a slot."""

    future: asyncio.Future[Member]
    avoid: Collection[str]
    route: Capability | None

    def fail(self, error: Exception) -> None:
        """Tell it that none will come, unless it has one or went away."""
        if not self.future.done():
            self.future.set_exception(error)


class Grantor(Protocol):
    """What a Slot needs of its dispatcher."""

    async def acquire(
        self, order: Order, avoid: Collection[str], route: Capability | None
    ) -> Member:
        """Wait for a place."""

    def release(self, member: Member) -> None:
        """Give a place back."""

    def admit(self, member: Member) -> None:
        """Note an answer."""

    def blame(self, member: Member, *, refused: bool) -> bool:
        """Note a failure; tell whether the server is ejected now."""


class Slot:
    """One request's place at a server, held between `async with` and its end.

    Say `succeeded` or `failed` before leaving; saying nothing leaves the server's name as it was.
    """

    __slots__ = ("_avoid", "_dispatcher", "_member", "_order", "_route")

    _member: Member

    def __init__(
        self,
        dispatcher: Grantor,
        order: Order,
        avoid: Collection[str],
        route: Capability | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._order = order
        self._avoid = avoid
        self._route = route

    async def __aenter__(self) -> Self:
        self._member = await self._dispatcher.acquire(self._order, self._avoid, self._route)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._dispatcher.release(self._member)

    @property
    def endpoint(self) -> Endpoint:
        """The server of this slot."""
        return self._member.endpoint

    def succeeded(self) -> None:
        """The server answered: a trial is passed, failures are forgotten."""
        self._dispatcher.admit(self._member)

    def failed(self, *, refused: bool = False) -> bool:
        """Count a failure of the server; a refused connection ejects it at once.

        Returns:
            Whether the server is ejected now.
        """
        return self._dispatcher.blame(self._member, refused=refused)
