"""One candidate under load: kept full with the run's own prompts until its speed is known.

Enters: a server's address, prompts as ids, sampling. Leaves: a TrialResult, read from the server's
own /metrics. It exists because a benchmark of a few requests measures the start of a batch: here
the batch has turned over once before anything counts, and the clock runs until the speed stands
still. All that is known of the server comes over HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field

from tasks.serving.metrics import ServerLoad, read_load

# Kept queued beyond the slots, so that none waits for this process.
_QUEUED_SHARE = 0.5
_LEAST_QUEUED = 4
_LEAST_SLICES = 6
_ENOUGH_ERROR = 0.01
_FULL_SHARE = 0.8
_SILENT_SLICES = 6
_REQUEST_SECONDS = 3600.0
_METRICS_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Workbench:
    """What every candidate is given alike.

    Attributes:
        prompts: Token ids of prompts. Shape [n_prompts, n_tokens].
        sampling: Parameters of /generate, max_new_tokens among them.
        slice_seconds: Between two readings of /metrics.
        warm_seconds: Longest wait for a full turn of the batch.
        most_seconds: Longest measurement after it, once there are a few readings.
    """

    prompts: Sequence[Sequence[int]]
    sampling: Mapping[str, Any]
    slice_seconds: float = 5.0
    warm_seconds: float = 300.0
    most_seconds: float = 300.0


class TrialResult(BaseModel):
    """How a candidate did; with `error` it did not, and the figures are 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    tokens_per_second: float = 0.0
    relative_error: float = Field(default=0.0, description="Standard error of the speed, relative.")
    n_running: float = Field(default=0.0, description="Mean requests in the batch.")
    n_retracted: int = 0
    token_usage: float = Field(default=0.0, description="Greatest share of the KV cache in use.")
    n_answers: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(slots=True)
class _Load:
    """Requests in flight, and what became of the others."""

    n_answers: int = 0
    n_errors: int = 0
    last_error: str = ""
    numbers: itertools.count[int] = field(default_factory=itertools.count)


async def run_trial(
    name: str,
    base_url: str,
    bench: Workbench,
    *,
    slots: int,
    headers: Mapping[str, str] | None = None,
) -> TrialResult:
    """Keep a server full and measure it; a server that fails is a result, too.

    Args:
        name: The candidate's.
        base_url: The server's.
        bench: Prompts, sampling and limits.
        slots: Requests that it runs at once: half as many more are kept queued.
        headers: Of every request: the API key.
    """
    n_in_flight = slots + max(_LEAST_QUEUED, math.ceil(slots * _QUEUED_SHARE))
    load = _Load()
    limits = httpx.Limits(max_connections=n_in_flight + 4)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, trust_env=False, timeout=_REQUEST_SECONDS
    ) as client:
        workers = [
            asyncio.create_task(_keep_asking(client, bench, load)) for _ in range(n_in_flight)
        ]
        try:
            result = await _measure(name, client, bench, load, slots)
        except (httpx.HTTPError, ValueError) as error:
            result = TrialResult(name=name, error=f"{type(error).__name__}: {error}"[:300])
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
    return result


async def _keep_asking(client: httpx.AsyncClient, bench: Workbench, load: _Load) -> None:
    while True:
        prompt = bench.prompts[next(load.numbers) % len(bench.prompts)]
        body = {"input_ids": list(prompt), "sampling_params": dict(bench.sampling)}
        try:
            answer = await client.post("/generate", json=body)
            answer.raise_for_status()
            load.n_answers += 1
        except httpx.HTTPError as error:
            load.n_errors += 1
            load.last_error = str(error) or type(error).__name__
            # A server that refuses at once is not asked in a tight loop.
            await asyncio.sleep(bench.slice_seconds / 10)


async def _measure(
    name: str, client: httpx.AsyncClient, bench: Workbench, load: _Load, slots: int
) -> TrialResult:
    loop = asyncio.get_running_loop()
    warm_until = loop.time() + bench.warm_seconds
    while load.n_answers < slots and loop.time() < warm_until:
        await asyncio.sleep(bench.slice_seconds / 10)
        if load.n_errors > slots:
            raise ValueError(f"{load.n_errors} requests failed: {load.last_error}")
    began, first = loop.time(), await _read(client)
    last, last_at, n_answers = first, began, load.n_answers
    speeds: list[float] = []
    running: list[int] = []
    queued: list[int] = []
    usage = first.token_usage
    while len(speeds) < _LEAST_SLICES or (
        not _is_enough(speeds) and loop.time() - began < bench.most_seconds
    ):
        await asyncio.sleep(bench.slice_seconds)
        reading, now = await _read(client), loop.time()
        speeds.append((reading.n_decoded - last.n_decoded) / (now - last_at))
        running.append(reading.n_running)
        queued.append(reading.n_queued)
        usage = max(usage, reading.token_usage)
        last, last_at = reading, now
        if len(speeds) >= _SILENT_SLICES and not any(speeds):
            raise ValueError("it generates nothing")
    if load.n_errors > load.n_answers:
        raise ValueError(f"{load.n_errors} requests failed: {load.last_error}")
    if statistics.fmean(queued) < 1 and statistics.fmean(running) < _FULL_SHARE * slots:
        # Nothing waited for a place that was free: what was measured is this process.
        raise ValueError("the batch was never full: requests were not sent fast enough")
    seconds = last_at - began
    speed = (last.n_decoded - first.n_decoded) / seconds
    return TrialResult(
        name=name,
        tokens_per_second=speed,
        relative_error=_relative_error(speeds),
        n_running=statistics.fmean(running),
        n_retracted=last.n_retracted - first.n_retracted,
        token_usage=usage,
        n_answers=load.n_answers - n_answers,
        seconds=seconds,
    )


async def _read(client: httpx.AsyncClient) -> ServerLoad:
    answer = await client.get("/metrics", timeout=_METRICS_SECONDS)
    reading = read_load(answer.text)
    if reading is None:
        raise ValueError("/metrics is not that of an sglang server")
    return reading


def _is_enough(speeds: Sequence[float]) -> bool:
    return _relative_error(speeds) <= _ENOUGH_ERROR


def _relative_error(speeds: Sequence[float]) -> float:
    mean = statistics.fmean(speeds)
    if len(speeds) < 2 or mean == 0:
        return 1.0
    return statistics.stdev(speeds) / math.sqrt(len(speeds)) / mean
