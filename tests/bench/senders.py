"""The baselines: the same bodies by raw aiohttp with a bounded pool, and by the bare transport."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp
import httpx

from tasks.completions.transport import WholeBodyTransport
from tests.support.simulator import SimulatedServer


async def send_all(
    servers: list[SimulatedServer],
    bodies: list[bytes],
    in_flight: int,
    send: Callable[[str, bytes], Awaitable[int]],
) -> None:
    urls = [server.base_url + "/generate" for server in servers]
    waiting = iter(enumerate(bodies))

    async def work() -> None:
        for number, body in waiting:
            n_bytes = await send(urls[number % len(urls)], body)
            assert n_bytes > 1000

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def send_raw(servers: list[SimulatedServer], bodies: list[bytes], in_flight: int) -> None:
    headers = {"content-type": "application/json"}
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(url: str, body: bytes) -> int:
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == 200
                return len(await response.read())

        await send_all(servers, bodies, in_flight, send)


async def send_bare(
    transport: WholeBodyTransport,
    servers: list[SimulatedServer],
    bodies: list[bytes],
    in_flight: int,
) -> None:
    headers = httpx.Headers({"content-type": "application/json"})

    async def send(url: str, body: bytes) -> int:
        request = httpx.Request("POST", url, headers=headers, stream=httpx.ByteStream(body))
        request.read()
        response = await transport.handle_async_request(request)
        assert response.status_code == 200
        return len(await response.aread())

    try:
        await send_all(servers, bodies, in_flight, send)
    finally:
        await transport.aclose()
