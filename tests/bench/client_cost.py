"""CPU milliseconds a request: the whole path beside the bare transport and raw aiohttp.

All three send the same bodies to the same servers in one run; the whole path adds dispatch, retry
policy, parsing, journal, part and counters.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import httpx
import msgspec
from httpx_aiohttp import AiohttpTransport

from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk
from tasks.completions.wire import GenerationParams, TurnRequest, encode_native
from tests.bench.fleet import Watch, watch
from tests.support.generation import GenerationRun, build_run, invent_prompts, load_template
from tests.support.simulator import SimulatedServer, start_simulator

MAX_RATIO = 1.7
_TOLERANCE = 1.2
_N_SERVERS = 2
MEASURED_ONLY = GatesConfig(
    accept=("duplicate", "truncation", "repetition", "tiny_mask", "empty_answer", "empty_thinking")
)


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of answers: their mean length in tokens, how many, how many at once."""

    name: str
    mean_tokens: int
    n_requests: int
    in_flight: int
    time_scale: float
    max_ratio: float | None


LOADS = (
    Load("2 KB answers", 450, 1500, 512, 0.01, MAX_RATIO),
    Load("2,700 ids", 2700, 300, 128, 0.003, None),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of the table."""

    load: str
    path: str
    n_requests: int
    cpu_ms: float
    requests_per_second: float
    ratio: float
    simulator_cpu_share: float
    bottleneck: str | None
    over_budget: bool

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return asdict(self)


async def measure_costs(load: Load) -> list[Cost]:
    """Measure the three paths, one after the other, over the same servers."""
    slots = load.in_flight // _N_SERVERS
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        start_simulator(
            _N_SERVERS,
            sim_mean_tokens=load.mean_tokens,
            sim_sigma=0.3,
            sim_time_scale=load.time_scale,
            max_running_requests=slots,
        ) as servers,
    ):
        template = load_template()
        prompts = invent_prompts(template, load.n_requests)
        run = build_run(
            Path(name),
            template,
            [prompts],
            generation=GenerationConfig(surplus=0),
            gates=MEASURED_ONLY,
            max_tokens=3500,
        )
        bodies = _encode_bodies(run)
        # Connections, code and the servers' answers are warm for all three.
        await _send_raw(servers, bodies[: load.in_flight], load.in_flight)
        raw = await _measure(servers, lambda: _send_raw(servers, bodies, load.in_flight))
        # What is paid once a run, such as reading the certificates, is made beforehand.
        transport = AiohttpTransport(
            client=lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        bare = await _measure(
            servers, lambda: _send_bare(transport, servers, bodies, load.in_flight)
        )
        await transport.aclose()
        async with run.dispatch(servers, slots=slots) as dispatcher:
            whole = await _measure(servers, lambda: _generate(run, dispatcher))
    paths = {"raw aiohttp": raw, "bare transport": bare, "whole path": whole}
    return [_to_cost(load, path, *figures, base=raw[0]) for path, figures in paths.items()]


def _to_cost(load: Load, path: str, cpu: float, seen: Watch, *, base: float) -> Cost:
    ratio = cpu / base
    limited = path == "whole path" and load.max_ratio is not None
    return Cost(
        load=load.name,
        path=path,
        n_requests=load.n_requests,
        cpu_ms=1000 * cpu / load.n_requests,
        requests_per_second=load.n_requests / seen.wall_seconds,
        ratio=ratio,
        simulator_cpu_share=seen.cpu_share,
        bottleneck=seen.find_bottleneck(),
        over_budget=limited and ratio > (load.max_ratio or 0) * _TOLERANCE,
    )


def _encode_bodies(run: GenerationRun) -> list[bytes]:
    params = GenerationParams.from_plan(run.plan)
    bodies = []
    for number, prompt in enumerate(run.prompts[0]):
        n_prompt = len(prompt.prompt_token_ids)
        max_tokens = min(run.plan.max_tokens, run.plan.context_length - n_prompt - 1)
        ids = msgspec.Raw(msgspec.json.encode(prompt.prompt_token_ids))
        request = TurnRequest(prompt.messages, None, ids, n_prompt, max_tokens, max_tokens)
        bodies.append(encode_native(params, request, rid=f"bench{number:011x}", model=""))
    return bodies


async def _measure(
    servers: list[SimulatedServer], send: Callable[[], Awaitable[None]]
) -> tuple[float, Watch]:
    with watch(servers) as seen:
        began = time.process_time()
        await send()
        cpu = time.process_time() - began
    return cpu, seen


async def _send_all(
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


async def _send_raw(servers: list[SimulatedServer], bodies: list[bytes], in_flight: int) -> None:
    headers = {"content-type": "application/json"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(url: str, body: bytes) -> int:
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == 200
                return len(await response.read())

        await _send_all(servers, bodies, in_flight, send)


async def _send_bare(
    transport: AiohttpTransport,
    servers: list[SimulatedServer],
    bodies: list[bytes],
    in_flight: int,
) -> None:
    headers = {"content-type": "application/json"}

    async def send(url: str, body: bytes) -> int:
        request = httpx.Request("POST", url, headers=headers, content=body)
        response = await transport.handle_async_request(request)
        assert response.status_code == 200
        return len(await response.aread())

    await _send_all(servers, bodies, in_flight, send)


async def _generate(run: GenerationRun, dispatcher: Dispatcher) -> None:
    receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    assert receipt.footer.n_rows == len(run.prompts[0])
    assert receipt.footer.n_failed == 0
