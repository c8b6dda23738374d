"""How long a whole run takes against the ideal, by the shipped dispatcher on a virtual clock.

The field's fleet and lengths at a quarter of the width: 8 servers of 18 slots, steps of
29.9 + 4 x 0.43 b ms, lognormal answers of mean 2,712 tokens capped at 8,192, 193 chunks of 250
after a canary of 64 that is a barrier. Servers are the simulator's engines in this process; hours
pass in seconds, and nothing else that the box does can disturb the figure. Ideal is all tokens at
the speed of full batches.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context

import msgspec

from infra.simulator.engine import Engine
from tasks.completions.client import Client
from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.record import Usage
from tasks.completions.retry import Asker
from tasks.completions.wire import Answer, GenerationParams, TurnRequest
from tasks.serving.record import Endpoint
from tests.bench.report import Report, make_table
from tests.support.generation import make_endpoint

N_SERVERS = 8
SLOTS = 18
STEP_BASE_SECONDS = 0.0299
STEP_SLOPE_SECONDS = 4 * 0.00043
MEAN_TOKENS = 2712
# 523M tokens at the 9.4K tokens a second of the field's eight cards.
FIELD_HOURS = 15.5
MAX_TOKENS = 8192
CANARY_SIZE = 64
CHUNK_SIZE = 250
CHUNK_START_SECONDS = 3.0
_SIGMA = 0.8
_PARAMS = GenerationParams({}, thinking=True, reasoning_parser=None, tool_call_parser=None)
_IDS = msgspec.Raw(b"[1]")


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing else is to be done."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Makespan:
    """The figures of one simulated run; efficiency is ideal over makespan."""

    name: str
    n_requests: int
    makespan_hours: float
    ideal_hours: float
    efficiency: float
    min_efficiency: float

    @property
    def over_budget(self) -> bool:
        """Whether the run took longer than its budget."""
        return self.efficiency < self.min_efficiency

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return {**asdict(self), "over_budget": self.over_budget}


def report() -> Report:
    """Simulate the runs and lay them out."""
    runs = measure_makespans()
    rows = [
        (
            run.name,
            str(run.n_requests),
            f"{run.ideal_hours:.2f}",
            f"{run.makespan_hours:.2f}",
            f"{run.efficiency:.3f}",
            f"{run.min_efficiency:.3f}",
        )
        for run in runs
    ]
    columns = ("run", "requests", "ideal h", "makespan h", "efficiency", "budget")
    title = "Makespan of a whole run on a virtual clock, tail and canary included"
    return Report(
        make_table(title, columns, rows),
        [run.to_json() for run in runs],
        tuple(
            f"{run.name}: {run.efficiency:.3f} of the ideal, below {run.min_efficiency:.3f}"
            for run in runs
            if run.over_budget
        ),
    )


class EngineClient(Client):
    """Has requests answered by engines in this process; `max_tokens` is the answer's length."""

    def __init__(self, slowness: Sequence[float]) -> None:
        super().__init__()
        self.engines = {
            make_url(number): Engine(
                max_running=SLOTS,
                step_base_seconds=STEP_BASE_SECONDS * slow,
                step_slope_seconds=STEP_SLOPE_SECONDS * slow,
                time_scale=1.0,
            )
            for number, slow in enumerate(slowness)
        }
        self._n_sent = 0

    async def generate(
        self,
        endpoint: Endpoint,
        params: GenerationParams,
        request: TurnRequest,
        *,
        deadline_seconds: float,
    ) -> tuple[Answer, float]:
        self._n_sent += 1
        job = self.engines[endpoint.base_url].submit(f"{self._n_sent:08x}", request.max_tokens)
        n_tokens = await job.ended
        usage = Usage(1, n_tokens, 0)
        return Answer("a", "t", [], None, _IDS, _IDS, "native", "stop", usage), 0.0


def make_url(number: int) -> str:
    return f"http://127.0.0.1:{30_000 + number}"


def draw_lengths(n: int, seed: int) -> list[int]:
    """Draw lengths of answers in tokens: lognormal before the cap. Shape [n]."""
    luck = random.Random(seed)
    # The cap takes from the mean: the median is set so that the capped mean is about 2,712.
    median = 1.06 * MEAN_TOKENS * math.exp(-(_SIGMA**2) / 2)
    return [
        min(MAX_TOKENS, max(8, int(luck.lognormvariate(math.log(median), _SIGMA))))
        for _ in range(n)
    ]


async def run_chunks(dispatcher: Dispatcher, chunks: Sequence[Sequence[int]]) -> None:
    """Run the canary, then all other chunks as the window opens."""

    async def run_chunk(chunk_id: int, lengths: Sequence[int]) -> None:
        async with dispatcher.window.open_chunk(chunk_id, len(lengths)):
            await asyncio.sleep(CHUNK_START_SECONDS)
            waiting = iter(enumerate(lengths))

            async def work() -> None:
                for index, n_tokens in waiting:
                    dispatcher.window.note_begun(chunk_id)
                    request = TurnRequest([], None, _IDS, 1, n_tokens, n_tokens)
                    asker = Asker(
                        dispatcher,
                        _PARAMS,
                        request,
                        GenerationConfig(),
                        order=(chunk_id, index),
                        route=None,
                    )
                    await asker.ask()

            n_workers = min(len(lengths), dispatcher.capacity)
            await asyncio.gather(*(work() for _ in range(n_workers)))

    await run_chunk(0, chunks[0])
    await asyncio.gather(*(run_chunk(i, chunk) for i, chunk in enumerate(chunks[1:], 1)))


def measure_makespan(
    name: str, n_chunks: int, slowness: Sequence[float], min_efficiency: float
) -> Makespan:
    """Simulate one run to its end."""
    lengths = draw_lengths(CANARY_SIZE + n_chunks * CHUNK_SIZE, seed=1)
    chunks = [lengths[:CANARY_SIZE]]
    chunks += [
        lengths[start : start + CHUNK_SIZE]
        for start in range(CANARY_SIZE, len(lengths), CHUNK_SIZE)
    ]

    async def play() -> float:
        client = EngineClient(slowness)
        endpoints = [make_endpoint(url, slots=SLOTS) for url in client.engines]
        async with Dispatcher(endpoints, GenerationConfig(), client=client) as dispatcher:
            await run_chunks(dispatcher, chunks)
            return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        makespan = runner.run(play())
    step = STEP_BASE_SECONDS + STEP_SLOPE_SECONDS * SLOTS
    tokens_per_second = sum(SLOTS / (step * slow) for slow in slowness)
    ideal = sum(lengths) / tokens_per_second
    return Makespan(
        name=name,
        n_requests=len(lengths),
        makespan_hours=makespan / 3600,
        ideal_hours=ideal / 3600,
        efficiency=ideal / makespan,
        min_efficiency=min_efficiency,
    )


def measure_makespans() -> list[Makespan]:
    """Simulate the field's run, and one with a server five times slower, a process each."""
    even = [1.0] * N_SERVERS
    uneven = [5.0, *even[1:]]
    runs = [
        ("194 chunks, 8 equal servers", 193, even, 0.98),
        ("194 chunks, one server 5 x slower", 193, uneven, 1 / 1.1),
    ]
    with ProcessPoolExecutor(len(runs), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(measure_makespan, *run) for run in runs]
        return [future.result() for future in futures]
