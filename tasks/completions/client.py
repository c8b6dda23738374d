"""One request to one server, and what came of it.

Enters: an Endpoint, the plan's parameters and one TurnRequest. Leaves: an Answer with its ids
unparsed, or a RequestFailed whose type says what happened. It exists so that the cost of a request
is known: an httpx.Request goes straight to the aiohttp transport, because AsyncClient.send adds
0.45 ms of CPU for cookies, redirects, auth and hooks that no request here has.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx
import msgspec
from pydantic import SecretStr

from tasks.completions.transport import WholeBodyTransport
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


class DeadlineExceeded(RequestFailed):
    """The answer did not come in time; the request was aborted at the server."""


@dataclass(frozen=True, slots=True)
class _Route:
    """What a server's requests share, parsed once."""

    generate: httpx.URL
    abort: httpx.URL
    health: httpx.URL


class Client:
    """Sends requests over one shared pool of connections; redirects are never followed."""

    def __init__(self, api_key: SecretStr | None = None) -> None:
        """Take the bearer key of the servers, if they want one. Nothing is opened yet."""
        self._headers = httpx.Headers(
            # The body is read as it comes from the wire.
            {"content-type": "application/json", "accept-encoding": "identity"}
        )
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key.get_secret_value()}"
        self._transport = WholeBodyTransport()
        self._routes: dict[tuple[str, str], _Route] = {}
        self._aborting: set[asyncio.Task[None]] = set()
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
        try:
            async with asyncio.timeout(deadline_seconds):
                status, headers, content = await self._exchange("POST", route.generate, body)
        except TimeoutError:
            self._abort_soon(route, rid)
            raise DeadlineExceeded(f"no answer within {deadline_seconds:.0f} s") from None
        except asyncio.CancelledError:
            self._abort_soon(route, rid)
            raise
        seconds = time.monotonic() - began
        if status != _OK:
            raise HttpFailure(status, _read_retry_after(headers))
        try:
            answer = read_native(content, params, request) if native else read_chat(content)
        except msgspec.MsgspecError as error:
            raise MalformedAnswer(type(error).__name__) from None
        return answer, seconds

    async def is_healthy(self, endpoint: Endpoint) -> bool:
        """Ask /health; a real server takes about 1 s to say yes."""
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                status, _, _ = await self._exchange("GET", self._route(endpoint).health, b"")
        except (TimeoutError, RequestFailed):
            return False
        return status == _OK

    async def _exchange(
        self, method: str, url: httpx.URL, body: bytes
    ) -> tuple[int, httpx.Headers, bytes]:
        # As a stream httpx takes the body as it is; aiohttp adds host and length itself.
        request = httpx.Request(method, url, headers=self._headers, stream=httpx.ByteStream(body))
        request.read()
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.ConnectError as error:
            raise ConnectionRefused(str(error)) from error
        except httpx.TransportError as error:
            raise Disconnected(str(error)) from error
        stream = response.stream
        assert isinstance(stream, httpx.ByteStream)  # noqa: S101  # narrows for mypy
        return response.status_code, response.headers, b"".join(stream)

    def _route(self, endpoint: Endpoint) -> _Route:
        key = (endpoint.base_url, endpoint.capability)
        route = self._routes.get(key)
        if route is None:
            path = "/generate" if endpoint.capability == "native" else "/v1/chat/completions"
            base = endpoint.base_url.rstrip("/")
            route = _Route(
                httpx.URL(base + path),
                httpx.URL(f"{base}/abort_request"),
                httpx.URL(f"{base}/health"),
            )
            self._routes[key] = route
        return route

    def _abort_soon(self, route: _Route, rid: str) -> None:
        task = asyncio.get_running_loop().create_task(self._abort(route, rid))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)

    async def _abort(self, route: _Route, rid: str) -> None:
        """Free the slot; a server that cannot be told has no use for it either."""
        try:
            async with asyncio.timeout(_ABORT_SECONDS):
                await self._exchange("POST", route.abort, msgspec.json.encode({"rid": rid}))
        except (TimeoutError, RequestFailed):
            return


def _read_retry_after(headers: httpx.Headers) -> float | None:
    value = headers.get("retry-after", "")
    if not value.isdecimal():
        return None
    return min(float(value), _LONGEST_RETRY_AFTER_SECONDS)
