"""httpx's requests over aiohttp's connections, whole bodies each way.

Enters: an httpx.Request whose body is bytes, or, where every tenth of a millisecond counts, a url
and a body. Leaves: what the server answered, read to the end, or an httpx.TransportError whose type
says whether anything was sent. It exists because AiohttpTransport streams, and because an
httpx.Request and an httpx.Response a call cost a third of what aiohttp itself does: headers that
are the same in each request are laid down once.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache

import aiohttp
import httpx
import msgspec
from aiohttp.payload import BytesPayload
from httpx_aiohttp import AiohttpTransport

_CONNECT_SECONDS = 5.0
# The servers close idle connections after 5 s (uvicorn's default). Ours go first: a request sent
# on a connection that is just being closed would be lost.
_KEEPALIVE_SECONDS = 3.0


class Answered(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class WholeBodyTransport(AiohttpTransport):
    """Sends and receives whole bodies over one pool; redirects and cookies are not followed."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """Take what every request says. Opens nothing yet: the pool belongs to an event loop."""
        self._headers = dict(headers or {})
        # Connections take aiohttp's own TLS context; to make httpx's as well takes 60 ms.
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        super().__init__(client=self._open_session, verify=unused, trust_env=False)

    async def exchange(
        self,
        url: str,
        body: bytes,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        deadline_seconds: float | None = None,
    ) -> Answered:
        """Send a body and read the answer to its end.

        Raises:
            TimeoutError: the deadline, if there is one, passed.
            httpx.ConnectError: no connection was made: nothing was sent.
            httpx.ReadError: the connection broke before the answer was whole.
        """
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self.get_client()
        try:
            response = await self.client.request(
                method,
                url,
                headers=headers,
                data=BytesPayload(body) if body else None,
                allow_redirects=False,
                timeout=_limit(deadline_seconds),
            )
            try:
                content = await response.read()
            finally:
                response.release()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise httpx.ConnectError(type(error).__name__) from error
        except aiohttp.ClientError as error:
            raise httpx.ReadError(type(error).__name__) from error
        return Answered(response.status, response.headers, content)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request that was read, and read its answer to the end.

        Raises:
            httpx.ConnectError: no connection was made: nothing was sent.
            httpx.ReadError: the connection broke before the answer was whole.
        """
        answered = await self.exchange(
            str(request.url),
            request.content,
            method=request.method,
            headers=request.headers,
        )
        return httpx.Response(
            answered.status,
            headers=list(answered.headers.items()),
            stream=httpx.ByteStream(answered.content),
            request=request,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            # limit=0: how many requests are in flight is the dispatcher's business alone.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )


@lru_cache(maxsize=4096)
def _limit(deadline_seconds: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=deadline_seconds, sock_connect=_CONNECT_SECONDS)
