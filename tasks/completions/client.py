"""One request to one server, and what came of it.

Enters: an Endpoint, the plan's parameters and one TurnRequest. Leaves: an Answer with its ids
unparsed, or a RequestFailed whose type says what happened. It exists so that the cost of a request
is known: bodies go straight to the aiohttp transport, because httpx.AsyncClient.send adds 0.45 ms
of CPU for cookies, redirects, auth and hooks that no request here has.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx
import msgspec
from pydantic import SecretStr

from tasks.completions.in_flight import InFlight
from tasks.completions.transport import Answered, WholeBodyTransport
from tasks.completions.wire import (
    Answer,
    GenerationParams,
    MalformedAnswer,
    RequestFailed,
    TurnRequest,
    encode_chat,
    encode_native,
    read_chat,
    read_native,
)
from tasks.serving.record import Endpoint

_HEALTH_SECONDS = 5.0
_ABORT_SECONDS = 5.0
_LONGEST_RETRY_AFTER_SECONDS = 600.0
_OK = 200


class HttpFailure(RequestFailed):
    """The server answered with another status than 200; its text is not kept, for it may quote."""

    def __init__(self, status: int, retry_after: float | None) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.retry_after = retry_after


class ConnectionRefused(RequestFailed):
    """No connection was made: nothing was sent."""


class Disconnected(RequestFailed):
    """The connection broke before the answer was whole."""


@dataclass(frozen=True, slots=True)
class _Route:
    """Where a server's requests go, put together once."""

    generate: str
    abort: str
    health: str


class Client:
    """Sends requests over one shared pool of connections; redirects are never followed."""

    def __init__(
        self, api_key: SecretStr | None = None, *, transport: WholeBodyTransport | None = None
    ) -> None:
        """Take the servers' bearer key, if they want one. Nothing is opened yet.

        Args:
            api_key: Sent with every request.
            transport: Made from the key unless one is given.
        """
        headers = {
            "accept": "application/json",
            "content-type": "application/json",
            # The body is read as it comes from the wire.
            "accept-encoding": "identity",
            "user-agent": "draftmill",
        }
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key.get_secret_value()}"
        self._transport = transport or WholeBodyTransport(headers)
        self._routes: dict[tuple[str, str], _Route] = {}
        self._aborting: set[asyncio.Task[None]] = set()
        self._in_flight = InFlight()
        # SGLang aborts every request whose id *begins* with the one given: ids are of one length.
        self._rid_stem = secrets.token_hex(8)
        self._rids = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Wait for aborts under way, then close the connections."""
        if self._aborting:
            await asyncio.wait(set(self._aborting), timeout=_ABORT_SECONDS)
        self._in_flight.close()
        await self._transport.aclose()

    async def generate(
        self,
        endpoint: Endpoint,
        params: GenerationParams,
        request: TurnRequest,
        *,
        deadline_seconds: float,
    ) -> tuple[Answer, float]:
        """Have one turn generated; return the answer and the seconds that it took.

        On the deadline, and when the caller is cancelled, the request is aborted at the server.

        Raises:
            RequestFailed: one of its types (this module, and MalformedAnswer, AnswerAborted).
        """
        rid = f"{self._rid_stem}{next(self._rids):012x}"
        native = endpoint.capability == "native"
        encode = encode_native if native else encode_chat
        body = encode(params, request, rid=rid, model=endpoint.model)
        route = self._route(endpoint)
        began = time.monotonic()
        with self._in_flight.hold(endpoint.base_url, deadline_seconds):
            try:
                answered = await self._exchange(route.generate, body)
            except asyncio.CancelledError:
                self._abort_soon(route, rid)
                raise
        seconds = time.monotonic() - began
        if answered.status != _OK:
            raise HttpFailure(answered.status, _read_retry_after(answered.headers))
        content = answered.content
        try:
            answer = read_native(content, params, request) if native else read_chat(content)
        except msgspec.MsgspecError as error:
            raise MalformedAnswer(type(error).__name__) from None
        return answer, seconds

    def give_up_on(self, base_url: str) -> None:
        """Take back what a server has not answered: each request fails as Stalled."""
        self._in_flight.take_back_all(base_url)

    async def read_metrics(self, base_url: str, seconds: float) -> str | None:
        """Read a server's /metrics; None: it gives none in time."""
        url = f"{base_url.rstrip('/')}/metrics"
        try:
            answered = await self._exchange(url, b"", method="GET", deadline_seconds=seconds)
        except (TimeoutError, RequestFailed):
            return None
        return answered.content.decode("utf-8", "replace") if answered.status == _OK else None

    async def is_healthy(self, endpoint: Endpoint) -> bool:
        """Ask /health; a real server takes about 1 s to say yes."""
        url = self._route(endpoint).health
        try:
            answered = await self._exchange(
                url, b"", method="GET", deadline_seconds=_HEALTH_SECONDS
            )
        except (TimeoutError, RequestFailed):
            return False
        return answered.status == _OK

    async def _exchange(
        self, url: str, body: bytes, *, method: str = "POST", deadline_seconds: float | None = None
    ) -> Answered:
        try:
            return await self._transport.exchange(
                url, body, method=method, deadline_seconds=deadline_seconds
            )
        except httpx.ConnectError as error:
            raise ConnectionRefused(str(error)) from error
        except httpx.TransportError as error:
            raise Disconnected(str(error)) from error

    def _route(self, endpoint: Endpoint) -> _Route:
        key = (endpoint.base_url, endpoint.capability)
        route = self._routes.get(key)
        if route is None:
            path = "/generate" if endpoint.capability == "native" else "/v1/chat/completions"
            base = endpoint.base_url.rstrip("/")
            route = _Route(
                base + path,
                f"{base}/abort_request",
                f"{base}/health",
            )
            self._routes[key] = route
        return route

    def _abort_soon(self, route: _Route, rid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._abort(route, rid))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort(self, route: _Route, rid: str) -> None:
        """Free the slot; a server that cannot be told has no use for it either."""
        body = msgspec.json.encode({"rid": rid})
        try:
            await self._exchange(route.abort, body, deadline_seconds=_ABORT_SECONDS)
        except (TimeoutError, RequestFailed):
            return


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    value = headers.get("retry-after", "")
    if not value.isdecimal():
        return None
    return min(float(value), _LONGEST_RETRY_AFTER_SECONDS)
