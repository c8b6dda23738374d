"""CPU milliseconds a request: the whole path beside the bare transport and raw aiohttp.

All three send the same bodies to the same servers, in turns, with the garbage collector set as the
dispatcher sets it; the whole path adds dispatch, retry policy, parsing, journal, part and counters.
Only the ratio to raw aiohttp is judged: milliseconds depend on the machine and its other work.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import httpx
import msgspec

from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.garbage import collect_rarely
from tasks.completions.generate import generate_chunk
from tasks.completions.transport import WholeBodyTransport
from tasks.completions.wire import GenerationParams, TurnRequest, encode_native
from tests.bench.fleet import Watch, find_bottleneck, watch
from tests.support.generation import (
    GenerationRun,
    build_run,
    invent_prompts,
    load_template,
)
from tests.support.simulator import SimulatedServer, start_simulator

MAX_RATIO = 1.7
TOLERANCE = 1.2
_N_SERVERS = 2
_N_ROUNDS = 5
MEASURED_ONLY = GatesConfig(
    accept=("duplicate", "truncation", "repetition", "tiny_mask", "empty_answer", "empty_thinking")
)


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of answers: mean length in tokens, how many, how many at once, and what they may cost.

    Attributes:
        max_cpu_ms: The whole path's budget on one EPYC core, for the reader: never judged.
        max_ratio: The whole path's budget against raw aiohttp, or None.
    """

    name: str
    mean_tokens: int
    n_requests: int
    in_flight: int
    time_scale: float
    max_cpu_ms: float
    max_ratio: float | None


LOADS = (
    Load("2 KB answers", 450, 1000, 512, 0.003, 0.85, MAX_RATIO),
    Load("2,700 ids", 2700, 256, 128, 0.001, 1.3, None),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """One row of the table: medians over the rounds."""

    load: str
    path: str
    n_requests: int
    cpu_ms: float
    max_cpu_ms: float | None
    requests_per_second: float
    ratio: float
    max_ratio: float | None
    simulator_cpu_share: float
    bottleneck: str | None

    @property
    def over_budget(self) -> bool:
        """Whether the ratio is past its budget and the tolerance."""
        return self.max_ratio is not None and self.ratio > self.max_ratio * TOLERANCE

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return {**asdict(self), "over_budget": self.over_budget}


async def measure_costs(load: Load) -> list[Cost]:
    """Measure the three paths in turns, over the same servers."""
    rounds: dict[str, list[tuple[float, Watch]]] = {
        "raw aiohttp": [],
        "bare transport": [],
        "whole path": [],
    }
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        start_simulator(
            _N_SERVERS,
            sim_mean_tokens=load.mean_tokens,
            sim_sigma=0.3,
            sim_time_scale=load.time_scale,
            max_running_requests=load.in_flight // _N_SERVERS,
        ) as servers,
    ):
        template = load_template()
        prompts = invent_prompts(template, load.n_requests)
        for number in range(_N_ROUNDS):
            folder = Path(name) / f"round-{number}"
            folder.mkdir()
            run = build_run(
                folder,
                template,
                [prompts],
                generation=GenerationConfig(surplus=0),
                gates=MEASURED_ONLY,
                max_tokens=3500,
            )
            bodies = _encode_bodies(run)
            if number == 0:
                # Code and the servers' answers are warm for all three.
                await _send_raw(servers, bodies, load.in_flight)
            with collect_rarely():
                for path, send in _list_paths(run, servers, bodies, load).items():
                    rounds[path].append(await _measure(servers, send))
    return [_to_cost(load, path, seen, rounds["raw aiohttp"]) for path, seen in rounds.items()]


def _list_paths(
    run: GenerationRun, servers: list[SimulatedServer], bodies: list[bytes], load: Load
) -> dict[str, Callable[[], Awaitable[None]]]:
    # What is paid once a run, such as reading the certificates, is made beforehand.
    transport = WholeBodyTransport()
    dispatcher = run.dispatch(servers, slots=load.in_flight // _N_SERVERS)
    return {
        "raw aiohttp": lambda: _send_raw(servers, bodies, load.in_flight),
        "bare transport": lambda: _send_bare(transport, servers, bodies, load.in_flight),
        "whole path": lambda: _generate(run, dispatcher),
    }


def _to_cost(
    load: Load, path: str, seen: list[tuple[float, Watch]], raw: list[tuple[float, Watch]]
) -> Cost:
    is_judged = path == "whole path"
    return Cost(
        load=load.name,
        path=path,
        n_requests=load.n_requests,
        cpu_ms=statistics.median(1000 * cpu / load.n_requests for cpu, _ in seen),
        max_cpu_ms=load.max_cpu_ms if is_judged else None,
        requests_per_second=statistics.median(
            load.n_requests / watched.wall_seconds for _, watched in seen
        ),
        # Of one round each: what disturbs the machine for longer disturbs both.
        ratio=statistics.median(cpu / base for (cpu, _), (base, _) in zip(seen, raw, strict=True)),
        max_ratio=load.max_ratio if is_judged else None,
        simulator_cpu_share=max(watched.cpu_share for _, watched in seen),
        bottleneck=find_bottleneck([watched for _, watched in seen]),
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
        await _send_all(servers, bodies, in_flight, send)
    finally:
        await transport.aclose()


async def _generate(run: GenerationRun, dispatcher: Dispatcher) -> None:
    async with dispatcher:
        receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    assert receipt.footer.n_rows == len(run.prompts[0])
    assert receipt.footer.n_failed == 0
