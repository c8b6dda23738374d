"""How full the slots of real processes are kept: journals, parts and HTTP included.

Occupancy is busy slot-seconds over slots times makespan: 1 is the ideal, which no last answer lets
be reached. Chunks open through the dispatcher's window, as they do in a run. Void where this
process was starved by others on the box; `makespan` measures what the dispatcher alone loses.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.completions.config import GenerationConfig
from tasks.completions.context import GenerationContext
from tasks.completions.generate import generate_chunk
from tasks.prompts.record import Chunk
from tests.bench.client_cost import MEASURED_ONLY
from tests.bench.fleet import find_bottleneck, watch
from tests.bench.report import Report, make_table
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.simulator import start_simulator

MIN_OCCUPANCY = 0.85
MAX_LOOP_LAG_SECONDS = 0.05
_N_SERVERS = 2
_SLOTS = 16
_N_CHUNKS = 6
_CHUNK_SIZE = 64


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The figures of one run."""

    n_requests: int
    n_slots: int
    makespan_seconds: float
    busy_slot_seconds: float
    occupancy: float
    simulator_cpu_share: float
    bottleneck: str | None
    over_budget: bool

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return asdict(self)


def report() -> Report:
    """Measure and lay out."""
    found = asyncio.run(measure_occupancy())
    faults = []
    if found.bottleneck:
        faults.append(f"void, {found.bottleneck}")
    elif found.over_budget:
        faults.append(f"{found.occupancy:.3f}, below the budget")
    row = (
        str(found.n_requests),
        str(found.n_slots),
        f"{found.makespan_seconds:.1f}",
        f"{found.busy_slot_seconds:.1f}",
        f"{found.occupancy:.3f}",
        f"{found.simulator_cpu_share:.0%}",
    )
    columns = ("requests", "slots", "makespan s", "busy slot s", "occupancy", "simulator CPU")
    title = f"Slot occupancy (budget: >= {MIN_OCCUPANCY}, tail included)"
    return Report(make_table(title, columns, [row]), found.to_json(), tuple(faults))


async def measure_occupancy() -> Occupancy:
    """Generate all chunks and read the servers' busy time."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        start_simulator(
            _N_SERVERS,
            sim_mean_tokens=100,
            sim_sigma=0.4,
            sim_time_scale=0.15,
            max_running_requests=_SLOTS,
        ) as servers,
    ):
        template = load_template()
        prompts = invent_prompts(template, _N_CHUNKS * _CHUNK_SIZE)
        chunks = [prompts[i::_N_CHUNKS] for i in range(_N_CHUNKS)]
        run = build_run(
            Path(name),
            template,
            chunks,
            generation=GenerationConfig(),
            gates=MEASURED_ONLY,
        )
        async with run.dispatch(servers, slots=_SLOTS) as dispatcher:
            context = run.context(dispatcher)
            lags: list[float] = []
            with watch(servers) as seen:
                sampler = asyncio.create_task(_sample_lag(lags))
                async with asyncio.TaskGroup() as group:
                    for chunk in run.plan.chunks:
                        group.create_task(_run_chunk(context, chunk))
                sampler.cancel()
    n_slots = _N_SERVERS * _SLOTS
    occupancy = seen.busy_slot_seconds / (n_slots * seen.wall_seconds)
    return Occupancy(
        n_requests=len(prompts),
        n_slots=n_slots,
        makespan_seconds=seen.wall_seconds,
        busy_slot_seconds=seen.busy_slot_seconds,
        occupancy=occupancy,
        simulator_cpu_share=seen.cpu_share,
        bottleneck=find_bottleneck([seen]) or _find_starvation(lags),
        over_budget=occupancy < MIN_OCCUPANCY,
    )


async def _sample_lag(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        await asyncio.sleep(0.1)
        lags.append(loop.time() - began - 0.1)


def _find_starvation(lags: list[float]) -> str | None:
    lag = sorted(lags)[len(lags) // 2]
    if lag > MAX_LOOP_LAG_SECONDS:
        return f"this process ran {lag:.2f} s late (limit {MAX_LOOP_LAG_SECONDS} s)"
    return None


async def _run_chunk(context: GenerationContext, chunk: Chunk) -> None:
    async with context.dispatcher.window.open_chunk(chunk.id, chunk.n_prompts):
        await generate_chunk(context, chunk)
