"""What Prefect itself costs a run: 194 chunks as gathered tasks, and the same without Prefect.

Both generate the same small chunks over a canned wire; the tasks are bound as a run binds them, to
a block of results, with every key missed. What is left of the difference is Prefect's. A server of
Prefect runs beside it, as in a real run; the measurement has a process of its own.

    python -m tests.bench.prefect_cost N_CHUNKS      against PREFECT_API_URL
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
from prefect import flow

from flows.stages.kept import keep
from tasks.completions.client import Client
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk
from tasks.completions.task import generate_chunk_task, generation_context
from tasks.prompts.record import Chunk
from tasks.settings import Settings
from tasks.storage.config import StoreConfig
from tasks.storage.task import register_result_storage
from tests.bench.client_cost import MEASURED_ONLY
from tests.bench.makespan import FIELD_HOURS
from tests.bench.memory import CannedTransport
from tests.bench.report import Report, make_table
from tests.support.generation import (
    GenerationRun,
    build_run,
    invent_prompts,
    load_template,
    make_endpoint,
)
from tests.support.prefect_server import start_prefect_server

MAX_SHARE = 0.01
N_CHUNKS = 194
_CHUNK_SIZE = 10
_FIELD_SECONDS = FIELD_HOURS * 3600


@dataclass(frozen=True, slots=True)
class PrefectCost:
    """Seconds of wall and of this process's CPU, with and without Prefect."""

    n_chunks: int
    seconds: float
    bare_seconds: float
    cpu_seconds: float
    bare_cpu_seconds: float

    @property
    def cost_seconds(self) -> float:
        """What Prefect adds to the run's wall time, were nothing of it done beside the waiting."""
        return self.seconds - self.bare_seconds

    @property
    def cpu_ms_a_task(self) -> float:
        """What a task costs this process."""
        return 1000 * (self.cpu_seconds - self.bare_cpu_seconds) / self.n_chunks

    @property
    def share(self) -> float:
        """Of the wall time of the field's run."""
        return self.cost_seconds / _FIELD_SECONDS

    @property
    def over_budget(self) -> bool:
        """Whether the share is past its budget."""
        return self.share > MAX_SHARE

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return {
            **asdict(self),
            "cost_seconds": self.cost_seconds,
            "cpu_ms_a_task": self.cpu_ms_a_task,
            "share": self.share,
            "over_budget": self.over_budget,
        }


def report() -> Report:
    """Measure and lay out."""
    found = measure_prefect()
    row = (
        str(found.n_chunks),
        f"{found.seconds:.1f}",
        f"{found.bare_seconds:.1f}",
        f"{found.cpu_ms_a_task:.0f}",
        f"{found.share:.3%}",
        f"{MAX_SHARE:.0%}",
    )
    columns = ("chunks", "s", "without s", "CPU ms a task", "of the field's run", "budget")
    faults = (f"{found.share:.2%} of the field's run",) if found.over_budget else ()
    return Report(make_table("What Prefect costs", columns, [row]), found.to_json(), faults)


def measure_prefect(n_chunks: int = N_CHUNKS) -> PrefectCost:
    """Run the measurement against a server of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        start_prefect_server(Path(name)) as url,
    ):
        return measure_prefect_at(url, n_chunks)


def measure_prefect_at(url: str, n_chunks: int) -> PrefectCost:
    """Run the measurement in a process of its own, against a server that is there."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        environment = {**os.environ, "PREFECT_API_URL": url, "PREFECT_HOME": f"{name}/client"}
        environment |= {"PREFECT_LOGGING_LEVEL": "ERROR"}
        command = [sys.executable, "-m", "tests.bench.prefect_cost", str(n_chunks)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return PrefectCost(**orjson.loads(done.stdout))


async def compare(n_chunks: int) -> PrefectCost:
    """Generate the chunks both ways."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        template = load_template()
        prompts = invent_prompts(template, n_chunks * _CHUNK_SIZE)
        chunks = [prompts[at : at + _CHUNK_SIZE] for at in range(0, len(prompts), _CHUNK_SIZE)]
        runs = [
            build_run(_make_folder(Path(name), way), template, chunks, gates=MEASURED_ONLY)
            for way in ("bare", "tasks")
        ]
        bare_seconds, bare_cpu = await _generate(runs[0], generate_bare)
        seconds, cpu = await _generate(runs[1], generate_in_tasks)
    return PrefectCost(n_chunks, seconds, bare_seconds, cpu, bare_cpu)


async def generate_bare(run: GenerationRun, dispatcher: Dispatcher) -> None:
    """Generate every chunk without Prefect."""
    context = run.context(dispatcher)

    async def generate_one(chunk: Chunk) -> None:
        async with dispatcher.window.open_chunk(chunk.id, chunk.n_prompts):
            await generate_chunk(context, chunk)

    await asyncio.gather(*map(generate_one, run.plan.chunks))


@flow(persist_result=False, validate_parameters=False)
async def generate_in_tasks(run: GenerationRun, dispatcher: Dispatcher) -> None:
    """Generate every chunk as a run does: one task each, started when the window opens."""
    generation_context.set(run.context(dispatcher))
    plan_sha = run.plan.sha
    storage = await register_result_storage(StoreConfig(uri=run.store.uri), Settings())
    task = keep(generate_chunk_task, storage, refresh_cache=True)

    async def generate_one(chunk: Chunk) -> None:
        async with dispatcher.window.open_chunk(chunk.id, chunk.n_prompts):
            await task(plan_sha, chunk)

    await asyncio.gather(*map(generate_one, run.plan.chunks))


async def _generate(
    run: GenerationRun, way: Callable[[GenerationRun, Dispatcher], Awaitable[None]]
) -> tuple[float, float]:
    endpoints = [make_endpoint(f"http://127.0.0.1:{30_000 + i}", slots=72) for i in range(8)]
    client = Client(transport=CannedTransport())
    async with Dispatcher(endpoints, run.generation, client=client) as dispatcher:
        began, cpu = time.monotonic(), time.process_time()
        await way(run, dispatcher)
        return time.monotonic() - began, time.process_time() - cpu


def _make_folder(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path


if __name__ == "__main__":
    figures = asyncio.run(compare(int(sys.argv[1])))
    sys.stdout.buffer.write(orjson.dumps(asdict(figures)))
