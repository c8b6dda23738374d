"""The Prefect task around a chunk: cached by what the part depends on, retried with sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect import flow
from prefect.testing.utilities import prefect_test_harness

from tasks.completions.context import GenerationContext
from tasks.completions.task import generate_chunk_task, generation_context, needs_refresh
from tasks.errors import (
    FailureBudgetExceeded,
    NoEndpoint,
    RequestMismatch,
    SpoolFailed,
    StoppedByGate,
    StoreUnreachable,
)
from tasks.prompts.record import Chunk
from tasks.storage.layout import data_key
from tasks.storage.record import PartReceipt
from tests.support.generation import GenerationRun, build_run, invent_prompts, load_template
from tests.support.simulator import SimulatedServer, start_simulator

# Prefect's own clients of its API leave sockets open when a flow ends.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def prefect_api() -> Iterator[None]:
    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture(scope="module")
def servers() -> Iterator[list[SimulatedServer]]:
    with start_simulator(1, sim_time_scale=0.005, sim_mean_tokens=60) as servers:
        yield servers


async def run_in_flow(
    run: GenerationRun, servers: list[SimulatedServer], *, refresh: bool | None = None
) -> PartReceipt:
    @flow(persist_result=False)
    async def generate_once() -> PartReceipt:
        chunk = run.plan.chunks[0]
        fresh = refresh
        if fresh is None:
            fresh = await needs_refresh(run.store, run.plan.sha, chunk)
        return await generate_chunk_task.with_options(refresh_cache=fresh)(run.plan.sha, chunk)

    async with run.dispatch(servers) as dispatcher:
        token = generation_context.set(run.context(dispatcher))
        try:
            return await generate_once()
        finally:
            generation_context.reset(token)


def n_answered(servers: list[SimulatedServer]) -> int:
    return int(servers[0].stats()["outcomes"].get("completed", 0))


async def test_a_cached_receipt_counts_only_while_its_part_exists(
    tmp_path: Path, servers: list[SimulatedServer]
) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 12)])
    before = n_answered(servers)
    receipt = await run_in_flow(run, servers)
    assert n_answered(servers) - before == 12
    assert await run_in_flow(run, servers) == receipt
    assert n_answered(servers) - before == 12
    (tmp_path / "store" / data_key(0)).unlink()
    lost = await run_in_flow(run, servers, refresh=False)
    assert lost == receipt, "the cache alone does not see that the part is gone"
    again = await run_in_flow(run, servers)
    assert n_answered(servers) - before == 24
    assert again.header == receipt.header
    assert run.store.head(data_key(0)) is not None


async def count_runs(error: Exception, monkeypatch: pytest.MonkeyPatch) -> int:
    n_runs = 0

    async def fail(*_: object) -> PartReceipt:
        nonlocal n_runs
        n_runs += 1
        raise error

    @flow(persist_result=False)
    async def generate_once(run: Any) -> None:
        impatient = generate_chunk_task.with_options(retry_delay_seconds=0, refresh_cache=True)
        await impatient(run.plan.sha, run.plan.chunks[0])

    monkeypatch.setattr("tasks.completions.task.generate_chunk", fail)
    context = SimpleNamespace(
        plan=SimpleNamespace(
            sha="0" * 64,
            chunks=[Chunk(id=0, n_prompts=1, prompts_key="p", input_sha256="0" * 64)],
        )
    )
    token = generation_context.set(cast("GenerationContext", context))
    try:
        with pytest.raises(type(error)):
            await generate_once(context)
    finally:
        generation_context.reset(token)
    return n_runs


@pytest.mark.parametrize(
    "error",
    [StoppedByGate("x"), FailureBudgetExceeded("x"), NoEndpoint("x"), RequestMismatch("x")],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_second_try_cannot_mend_is_tried_once(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await count_runs(error, monkeypatch) == 1


@pytest.mark.parametrize("error", [SpoolFailed("x"), StoreUnreachable("x")])
async def test_a_fault_of_the_moment_is_tried_three_times(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await count_runs(error, monkeypatch) == 3


async def test_another_plan_than_the_contexts_is_refused(
    tmp_path: Path, servers: list[SimulatedServer]
) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 4)])
    async with run.dispatch(servers) as dispatcher:
        token = generation_context.set(run.context(dispatcher))
        try:
            with pytest.raises(ValueError, match="another plan"):
                await generate_chunk_task.fn("f" * 64, run.plan.chunks[0])
        finally:
            generation_context.reset(token)
