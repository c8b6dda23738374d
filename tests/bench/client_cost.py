"""CPU milliseconds a request: the whole path beside the bare transport and raw aiohttp.

All three send the same bodies to the same servers, in turns, with the garbage collector set as the
dispatcher sets it; the whole path adds dispatch, retry policy, parsing, journal, part and counters.
Only the ratio to raw aiohttp is judged: milliseconds depend on the machine and its other work.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.garbage import collect_rarely
from tasks.completions.generate import generate_chunk
from tasks.completions.transport import WholeBodyTransport
from tasks.completions.wire import GenerationParams, TurnRequest, encode_native
from tasks.prompts.record import Chunk
from tasks.storage.record import PartReceipt
from tests.bench.fleet import Watch, find_bottleneck, watch
from tests.bench.report import Report, make_table
from tests.bench.senders import send_bare, send_raw
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
_CHUNK_SIZE = 1000
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
    Load("2 KB answers", 450, 3000, 512, 0.003, 0.85, MAX_RATIO),
    Load("2,700 ids", 2700, 768, 128, 0.001, 1.3, None),
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


def report() -> Report:
    """Measure every load; the exit code is decided by the ratios to raw aiohttp alone."""
    costs = asyncio.run(_measure_loads())
    rows = [
        (
            cost.load,
            cost.path,
            f"{cost.cpu_ms:.2f}",
            "" if cost.max_cpu_ms is None else f"{cost.max_cpu_ms:.2f}",
            f"{cost.ratio:.2f}",
            "" if cost.max_ratio is None else f"{cost.max_ratio:.2f}",
            _judge(cost),
            f"{cost.requests_per_second:.0f}",
            f"{cost.simulator_cpu_share:.0%}",
        )
        for cost in costs
    ]
    columns = ("load", "path", "ms", "of", "x raw", "of", "budget", "req/s", "sim CPU")
    title = f"Client CPU a request; ratios are judged with {TOLERANCE - 1:.0%} of tolerance"
    return Report(
        make_table(title, columns, rows),
        [cost.to_json() for cost in costs],
        tuple(fault for cost in costs if (fault := _find_fault(cost))),
    )


def _judge(cost: Cost) -> str:
    if cost.bottleneck:
        return "void"
    missed = []
    if cost.max_ratio is not None and cost.ratio > cost.max_ratio:
        missed.append("ratio missed" if cost.over_budget else "ratio missed, tolerated")
    if cost.max_cpu_ms is not None and cost.cpu_ms > cost.max_cpu_ms:
        missed.append("ms missed")
    return ", ".join(missed) or ("reached" if cost.max_cpu_ms is not None else "")


def _find_fault(cost: Cost) -> str | None:
    if cost.bottleneck:
        return f"{cost.load}, {cost.path}: void, {cost.bottleneck}"
    if cost.over_budget:
        return f"{cost.load}, {cost.path}: {cost.ratio:.2f} x raw aiohttp, past the budget"
    return None


async def _measure_loads() -> list[Cost]:
    return [cost for load in LOADS for cost in await measure_costs(load)]


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
        chunks = [prompts[at : at + _CHUNK_SIZE] for at in range(0, len(prompts), _CHUNK_SIZE)]
        for number in range(_N_ROUNDS):
            folder = Path(name) / f"round-{number}"
            folder.mkdir()
            run = build_run(
                folder,
                template,
                chunks,
                generation=GenerationConfig(surplus=0),
                gates=MEASURED_ONLY,
                max_tokens=3500,
            )
            bodies = _encode_bodies(run)
            if number == 0:
                # Code and the servers' answers are warm for all three.
                await send_raw(servers, bodies, load.in_flight)
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
        "raw aiohttp": lambda: send_raw(servers, bodies, load.in_flight),
        "bare transport": lambda: send_bare(transport, servers, bodies, load.in_flight),
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
    for number, prompt in enumerate(itertools.chain.from_iterable(run.prompts)):
        n_prompt = len(prompt.prompt_token_ids)
        max_tokens = min(run.plan.max_tokens, run.plan.context_length - n_prompt - 1)
        ids = msgspec.Raw(msgspec.json.encode(prompt.prompt_token_ids))
        request = TurnRequest(prompt.messages, None, ids, n_prompt, max_tokens, max_tokens)
        bodies.append(encode_native(params, request, rid=f"bench{number:011x}", model=""))
    return bodies


async def _measure(
    servers: list[SimulatedServer], send: Callable[[], Awaitable[None]]
) -> tuple[float, Watch]:
    await _settle()
    with watch(servers) as seen:
        began = time.process_time()
        await send()
        cpu = time.process_time() - began
    return cpu, seen


async def _settle() -> None:
    """End what the path before left behind: connections being closed, and reference cycles."""
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()


async def _generate(run: GenerationRun, dispatcher: Dispatcher) -> None:
    async with dispatcher:
        context = run.context(dispatcher)

        async def generate_one(chunk: Chunk) -> PartReceipt:
            async with dispatcher.window.open_chunk(chunk.id, chunk.n_prompts):
                return await generate_chunk(context, chunk)

        receipts = await asyncio.gather(*map(generate_one, run.plan.chunks))
    assert sum(receipt.footer.n_rows for receipt in receipts) == run.plan.n_prompts
    assert not any(receipt.footer.n_failed for receipt in receipts)
