"""httpx's requests over aiohttp's connections, whole bodies each way.

Enters: an httpx.Request whose body is bytes. Leaves: an httpx.Response with its body read, or an
httpx.TransportError whose type says whether anything was sent. It exists because AiohttpTransport
streams: 28 KB that pass through its generators in pieces cost a quarter of a request.
"""

from __future__ import annotations

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

_CONNECT_SECONDS = 5.0
# The servers close idle connections after 5 s (uvicorn's default). Ours go first: a request sent
# on a connection that is just being closed would be lost.
_KEEPALIVE_SECONDS = 3.0


class WholeBodyTransport(AiohttpTransport):
    """Sends and receives whole bodies over one pool; redirects and cookies are not followed."""

    def __init__(self) -> None:
        """Open nothing yet: the pool belongs to the event loop of the first request."""
        super().__init__(client=_open_session, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request that was read, and read its answer to the end.

        Raises:
            httpx.ConnectError: no connection was made: nothing was sent.
            httpx.ReadError: the connection broke before the answer was whole.
        """
        if not isinstance(self.client, aiohttp.ClientSession):
            self.client = self.get_client()
        try:
            response = await self.client.request(
                request.method,
                str(request.url),
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw],
                data=request.content or None,
                allow_redirects=False,
            )
            try:
                content = await response.read()
            finally:
                response.release()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise httpx.ConnectError(type(error).__name__, request=request) from error
        except aiohttp.ClientError as error:
            raise httpx.ReadError(type(error).__name__, request=request) from error
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=httpx.ByteStream(content),
            request=request,
        )


def _open_session() -> aiohttp.ClientSession:
    # limit=0: how many requests are in flight is the dispatcher's business alone.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        # How long an answer may take is the caller's deadline.
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,
    )
