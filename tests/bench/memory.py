"""Memory of the generating process: a million prompts take what a hundred thousand take.

The whole machinery runs in a process of its own, Prefect imported: window, chunks read from
Parquet, dispatcher, journals, gates, parts, progress. Only the wire is canned, since servers could
not answer a million requests in minutes, and answers are tiny. Every chunk holds the same thousand
questions: what is kept of a prompt is kept a thousand times over all the same.

    python -m tests.bench.memory 1000000        prints the figures as JSON; ten minutes of CPU

`make bench` runs three hundred thousand and draws the line on to a million.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson
import prefect

from flows.pages.progress import ProgressSum
from tasks.completions.client import Client
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk
from tasks.completions.rolling import RunWatch
from tasks.completions.transport import Answered, WholeBodyTransport
from tasks.prompts.record import Chunk
from tasks.storage.layout import prompts_key
from tests.bench.client_cost import MEASURED_ONLY
from tests.bench.report import Report, make_table
from tests.support.generation import (
    build_run,
    invent_prompts,
    load_template,
    make_endpoint,
)

MAX_RSS_MB = 260.0
MAX_GROWTH_MB = 10.0
N_PROMPTS = 300_000
_FIRST_PROMPTS = 100_000
_LAST_PROMPTS = 1_000_000
_CHUNK_SIZE = 1000
_SLOTS = 72
_N_SERVERS = 8
# RSS jumps with every part that is written: a level is the median over this many chunks.
_LEVEL_CHUNKS = 20


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in MB: after a first share of the prompts, after all of them, at most."""

    n_first: int
    n_prompts: int
    seconds: float
    first_mb: float
    last_mb: float
    peak_mb: float
    prefect_version: str

    @property
    def growth_mb(self) -> float:
        """What memory grows by from 100k prompts to 1M: measured, or drawn on from what was."""
        slope = (self.last_mb - self.first_mb) / (self.n_prompts - self.n_first)
        return slope * (_LAST_PROMPTS - _FIRST_PROMPTS)

    @property
    def over_budget(self) -> bool:
        """Whether either figure is past its budget."""
        return self.peak_mb > MAX_RSS_MB or self.growth_mb > MAX_GROWTH_MB

    def to_json(self) -> dict[str, object]:
        """Give the fields."""
        return {**asdict(self), "growth_mb": self.growth_mb, "over_budget": self.over_budget}


def report() -> Report:
    """Measure and lay out."""
    found = measure_memory()
    row = (
        str(found.n_prompts),
        f"{found.seconds:.0f}",
        f"{found.first_mb:.1f}",
        f"{found.last_mb:.1f}",
        f"{found.peak_mb:.1f}",
        f"{MAX_RSS_MB:.0f}",
        f"{found.growth_mb:+.1f}",
        f"{MAX_GROWTH_MB:.0f}",
    )
    columns = ("prompts", "s", f"after {found.n_first}", "at the end", "peak", "of", "growth", "of")
    faults = []
    if found.peak_mb > MAX_RSS_MB:
        faults.append(f"{found.peak_mb:.0f} MB, past the budget")
    if found.growth_mb > MAX_GROWTH_MB:
        faults.append(f"{found.growth_mb:.1f} MB more from 100k prompts to 1M, past the budget")
    title = "Resident MB of the generating process, Prefect imported; growth from 100k to 1M"
    return Report(make_table(title, columns, [row]), found.to_json(), tuple(faults))


class CannedTransport(WholeBodyTransport):
    """Answers /generate at once, each time with another tiny text."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    async def exchange(
        self,
        url: str,
        body: bytes,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        deadline_seconds: float | None = None,
    ) -> Answered:
        await asyncio.sleep(0)
        n_prompt = body.count(b",", 0, body.index(b"]")) + 1
        content = (
            b'{"text":"I see.</think>\\n\\nAnswer %d, as asked.","output_ids":[1,2,3,4,5,6,7,8],'
            b'"meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":%d,'
            b'"completion_tokens":8}}' % (next(self._numbers), n_prompt)
        )
        return Answered(200, {}, content)


def measure_memory(n_prompts: int = N_PROMPTS) -> Memory:
    """Run the measurement in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.memory", str(n_prompts)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return Memory(**orjson.loads(done.stdout))


async def generate_all(n_prompts: int) -> Memory:
    """Generate every chunk and note the resident memory at each one's end."""
    levels: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        template = load_template()
        run = build_run(
            Path(name), template, [invent_prompts(template, _CHUNK_SIZE)], gates=MEASURED_ONLY
        )
        one, page = run.plan.chunks[0], run.store.get(run.plan.chunks[0].prompts_key)
        n_chunks = n_prompts // _CHUNK_SIZE
        chunks = tuple(
            one.model_copy(update={"id": i, "prompts_key": prompts_key(i)}) for i in range(n_chunks)
        )
        run.plan = run.plan.model_copy(update={"chunks": chunks})
        endpoints = [
            make_endpoint(f"http://127.0.0.1:{30_000 + i}", slots=_SLOTS) for i in range(_N_SERVERS)
        ]
        progress = ProgressSum(n_prompts, n_chunks, lambda state: None)
        began = time.monotonic()
        client = Client(transport=CannedTransport())
        async with Dispatcher(endpoints, run.generation, client=client) as dispatcher:
            watch = RunWatch(run.gates, n_conversations=n_prompts, failure_budget=1.0)
            context = replace(run.context(dispatcher, progress.take), watch=watch)

            async def generate_one(chunk: Chunk) -> None:
                async with dispatcher.window.open_chunk(chunk.id, _CHUNK_SIZE):
                    if chunk.id:
                        run.store.create(chunk.prompts_key, page)
                    progress.take_part(await generate_chunk(context, chunk))
                    levels.append(read_rss_mb())

            await asyncio.gather(*map(generate_one, chunks))
        seconds = time.monotonic() - began
    n_first = min(_FIRST_PROMPTS // _CHUNK_SIZE, n_chunks // 2)
    return Memory(
        n_first=n_first * _CHUNK_SIZE,
        n_prompts=n_prompts,
        seconds=seconds,
        first_mb=_take_level(levels[max(0, n_first - _LEVEL_CHUNKS) : n_first]),
        last_mb=_take_level(levels[-_LEVEL_CHUNKS:]),
        peak_mb=max(levels),
        prefect_version=prefect.__version__,
    )


def read_rss_mb() -> float:
    """Read this process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def _take_level(levels: list[float]) -> float:
    return sorted(levels)[len(levels) // 2]


if __name__ == "__main__":
    figures = asyncio.run(generate_all(int(sys.argv[1])))
    sys.stdout.buffer.write(orjson.dumps(asdict(figures)))
