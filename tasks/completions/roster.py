"""The servers of a dispatcher, and which of them takes the next request.

Enters: Endpoints that come and go. Leaves: the Member with the least in flight relative to its
size. Pure: who waits, and what happens to a server that fails, is the dispatcher's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tasks.completions.slot import Member, State
from tasks.serving.record import Capability, Endpoint


@dataclass(frozen=True, slots=True)
class EndpointLoad:
    """How a server stands, for those who watch; `n_errors`: failures that spoke against it."""

    base_url: str
    state: State
    slots: int
    n_in_flight: int
    n_answered: int
    n_errors: int


class Roster:
    """Members by base url.

    Attributes:
        capacity: Requests in flight when every server is full, ejected ones included.
    """

    def __init__(self) -> None:
        self.capacity = 0
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member: Member) -> bool:
        return self._members.get(member.endpoint.base_url) is member

    def add(self, endpoint: Endpoint, limit: int) -> bool:
        """Take a server in, with `limit` requests at once; one that is here stays as it is.

        Returns:
            Whether it is new here.

        Raises:
            ValueError: it gives no exact ids.
        """
        if endpoint.capability == "none":
            raise ValueError(f"{endpoint.base_url} gives no exact token ids")
        if endpoint.base_url in self._members:
            return False
        self._members[endpoint.base_url] = Member(endpoint, limit)
        self.capacity += limit
        return True

    def remove(self, base_url: str) -> None:
        """Let a server go, if it is here."""
        member = self._members.pop(base_url, None)
        if member is not None:
            self.capacity -= member.limit

    def lacks(self, route: Capability | None) -> bool:
        """Whether no server here, ejected ones included, has the route."""
        return route is not None and all(
            member.endpoint.capability != route for member in self._members.values()
        )

    def loads(self) -> tuple[EndpointLoad, ...]:
        """Say how each server stands."""
        return tuple(
            EndpointLoad(
                base_url=url,
                state=member.state,
                slots=member.endpoint.slots,
                n_in_flight=member.n_outstanding,
                n_answered=member.n_answered,
                n_errors=member.n_errors,
            )
            for url, member in self._members.items()
        )

    def has_room(self) -> bool:
        """Whether any server can take a request now."""
        for member in self._members.values():  # noqa: SIM110  # any() costs twice as much here
            if member.has_room:
                return True
        return False

    def choose(self, avoid: Collection[str], route: Capability | None) -> Member | None:
        """Choose the least loaded server with room; one to avoid only if no other is up."""
        best: Member | None = None
        spare: Member | None = None
        another_is_up = False
        for url, member in self._members.items():
            if member.state == "ejected" or (route and member.endpoint.capability != route):
                continue
            if url not in avoid:
                another_is_up = True
                if member.has_room and (best is None or member.load < best.load):
                    best = member
            elif member.has_room and (spare is None or member.load < spare.load):
                spare = member
        return best if another_is_up else spare
