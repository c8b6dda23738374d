"""A chunk over real simulated servers: exactly once, whatever the servers do."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.generate import generate_chunk, spool_folder
from tasks.completions.progress import Progress
from tasks.errors import FailureBudgetExceeded, NoEndpoint, StoppedByGate
from tests.support.generation import (
    build_run,
    count_sent,
    invent_prompts,
    load_template,
    make_prompt,
)
from tests.support.simulator import SimulatedServer, start_simulator

VERSIONS = ["0.5.12", "0.5.23"]
FAST = {"sim_time_scale": 0.01, "sim_mean_tokens": 120, "max_running_requests": 8}
PATIENT = GenerationConfig(attempts=10, backoff_seconds=0.02, return_after_seconds=0.1)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_chunk_gives_one_outcome_a_conversation_in_order(
    tmp_path: Path, version: str
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 40)
    run = build_run(tmp_path, template, [prompts], n_samples=2)
    told: list[Progress] = []
    with start_simulator(2, sim_version=version, **FAST) as servers:
        async with run.dispatch(servers, version=version) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher, told.append), run.plan.chunks[0])
            again = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            used = [server.stats()["outcomes"]["completed"] for server in servers]
    outcomes = run.read_outcomes(receipt.key)
    assert [(o.prompt_id, o.sample) for o in outcomes] == run.expect_ids(0)
    assert receipt.footer.n_rows == 80
    assert receipt.footer.n_generations == sum(used) == 80
    assert all(used), "both servers took part"
    assert again == receipt
    assert told[-1].n_done == 80
    for outcome, prompt in zip(outcomes[::2], prompts, strict=True):
        (completion,) = outcome.completions
        ids = json.loads(bytes(completion.output_token_ids))
        assert json.loads(bytes(completion.prompt_token_ids)) == prompt.prompt_token_ids
        assert len(ids) == completion.usage.completion_tokens
        assert completion.reasoning
        assert completion.content or completion.finish_reason == "length"
        if completion.finish_reason == "stop":
            assert ids[-1] in template.end_token_ids
        assert receipt.footer.server_versions[completion.endpoint] == version
    assert not spool_folder(tmp_path / "spool", run.plan.sha, 0).exists()


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_and_dropped_connections_lose_and_double_nothing(
    tmp_path: Path, version: str
) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 60)], generation=PATIENT)
    faults = {"error_rate": 0.15, "drop_rate": 0.15}
    with start_simulator(2, sim_version=version, sim_faults=faults, **FAST) as servers:
        async with run.dispatch(servers, version=version) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    outcomes = run.read_outcomes(receipt.key)
    assert [(o.prompt_id, o.sample) for o in outcomes] == run.expect_ids(0)
    assert receipt.footer.n_failed == 0
    assert max(o.completions[0].attempts for o in outcomes) > 1


async def test_a_dying_server_costs_no_conversation(tmp_path: Path) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 60)], generation=PATIENT)
    with start_simulator(2, **FAST) as servers:
        servers[0].set_faults(death_after_requests=10)
        async with run.dispatch(servers) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    outcomes = run.read_outcomes(receipt.key)
    assert [(o.prompt_id, o.sample) for o in outcomes] == run.expect_ids(0)
    assert receipt.footer.n_failed == 0


async def test_requests_to_a_hanging_server_are_aborted_and_answered_elsewhere(
    tmp_path: Path,
) -> None:
    template = load_template()
    config = GenerationConfig(
        floor_tokens_per_second=10_000,
        queue_seconds=3,
        backoff_seconds=0.05,
        eject_after=2,
        return_after_seconds=60,
    )
    run = build_run(tmp_path, template, [invent_prompts(template, 40)], generation=config)
    with start_simulator(2, **FAST) as servers:
        servers[0].set_faults(hang=True)
        async with run.dispatch(servers) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
        assert servers[0].stats()["outcomes"].get("completed", 0) == 0
        assert servers[0].stats()["running"] == 0, "every hanging request was aborted"
    assert receipt.footer.n_failed == 0
    assert receipt.footer.n_rows == 40


async def test_with_no_server_left_the_run_ends_and_the_rest_is_kept(tmp_path: Path) -> None:
    template = load_template()
    config = PATIENT.model_copy(update={"no_endpoint_seconds": 0.5})
    run = build_run(tmp_path, template, [invent_prompts(template, 40)], generation=config)
    log = tmp_path / "requests.jsonl"
    with start_simulator(1, sim_request_log=log, **FAST) as servers:
        servers[0].set_faults(death_after_requests=15)
        async with run.dispatch(servers) as dispatcher:
            with pytest.raises(NoEndpoint):
                await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
        servers[0].restart()
        kept = replayed_keys(run.spool_dir)
        async with run.dispatch(servers) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
        assert servers[0].stats()["outcomes"]["completed"] == 40 - len(kept)
    assert 0 < len(kept) < 40
    assert [(o.prompt_id, o.sample) for o in run.read_outcomes(receipt.key)] == run.expect_ids(0)


def wait_completed(server: SimulatedServer, n_requests: int) -> None:
    deadline = time.monotonic() + 60
    while server.stats()["outcomes"].get("completed", 0) < n_requests:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def replayed_keys(spool_dir: Path) -> set[str]:
    return {
        json.loads(line)["prompt_id"]
        for path in spool_dir.rglob("*.jsonl")
        for line in path.read_text().splitlines()
        if "status" in json.loads(line)
    }


async def test_a_cancelled_chunk_keeps_what_came_and_aborts_what_did_not(tmp_path: Path) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 40)])
    log = tmp_path / "requests.jsonl"
    slow = {**FAST, "sim_time_scale": 0.05}
    with start_simulator(1, sim_request_log=log, **slow) as servers:
        async with run.dispatch(servers) as dispatcher:
            task = asyncio.create_task(generate_chunk(run.context(dispatcher), run.plan.chunks[0]))
            await asyncio.to_thread(wait_completed, servers[0], 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert servers[0].stats()["running"] == 0
        finished = len(replayed_keys(run.spool_dir))
        assert finished >= 5
        before = servers[0].stats()["outcomes"]["completed"]
        async with run.dispatch(servers) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
        assert servers[0].stats()["outcomes"]["completed"] - before == 40 - finished
    assert receipt.footer.n_rows == 40
    assert max(count_sent(log).values()) <= 2


async def test_bad_answers_stop_the_run_before_anything_is_published(tmp_path: Path) -> None:
    template = load_template()
    prompts = invent_prompts(template, 60)
    run = build_run(tmp_path, template, [prompts], gates=GatesConfig())
    with start_simulator(1, sim_faults={"empty_answer_rate": 1.0}, **FAST) as servers:
        async with run.dispatch(servers) as dispatcher:
            with pytest.raises(StoppedByGate) as stopped:
                await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            assert list(run.store.list("data/")) == []
            assert any(line.startswith("empty_answer: 100.0%") for line in stopped.value.verdicts)
            n_sent = servers[0].stats()["outcomes"]["completed"]
            run.gates = GatesConfig(accept=("empty_answer", "duplicate"))
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            assert servers[0].stats()["outcomes"]["completed"] == n_sent
    assert receipt.footer.gates["empty_answer"] == 60


async def test_after_the_servers_are_mended_condemned_answers_are_asked_for_anew(
    tmp_path: Path,
) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 60)], gates=GatesConfig())
    folder = spool_folder(tmp_path / "spool", run.plan.sha, 0)
    with start_simulator(1, sim_faults={"empty_answer_rate": 1.0}, **FAST) as servers:
        async with run.dispatch(servers) as dispatcher:
            with pytest.raises(StoppedByGate, match=r"gates\.redo=\[empty_answer"):
                await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            servers[0].set_faults()
            with pytest.raises(StoppedByGate):
                await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            n_bad = servers[0].stats()["outcomes"]["completed"]
            assert n_bad == 60, "without being told so, nothing is thrown away"
            run.gates = GatesConfig(accept=("duplicate",), redo=("empty_answer",))
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            assert servers[0].stats()["outcomes"]["completed"] == n_bad + 60
    assert receipt.footer.gates["empty_answer"] == 0
    assert receipt.footer.n_rows == 60
    assert not folder.exists()
    kept = [path.read_text().count('"prompt_id"') for path in folder.parent.glob("*.aside/*")]
    assert sum(kept) >= 60, "what was condemned is kept"


async def test_good_journals_are_not_set_aside_by_a_run_that_mends(tmp_path: Path) -> None:
    template = load_template()
    run = build_run(tmp_path, template, [invent_prompts(template, 60)])
    run.gates = GatesConfig(accept=("duplicate",), redo=("empty_answer",))
    with start_simulator(1, **FAST) as servers:
        async with run.dispatch(servers) as dispatcher:
            chunk = asyncio.create_task(generate_chunk(run.context(dispatcher), run.plan.chunks[0]))
            await asyncio.to_thread(wait_completed, servers[0], 55)
            chunk.cancel()
            await asyncio.gather(chunk, return_exceptions=True)
            kept = len(replayed_keys(tmp_path / "spool"))
            before = servers[0].stats()["outcomes"]["completed"]
            await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            assert servers[0].stats()["outcomes"]["completed"] - before == 60 - kept


async def test_a_chunk_fails_past_its_failure_budget_and_a_rerun_mends_it(tmp_path: Path) -> None:
    template = load_template()
    config = GenerationConfig(attempts=2, backoff_seconds=0.01, eject_after=100)
    run = build_run(tmp_path, template, [invent_prompts(template, 40)], generation=config)
    with start_simulator(1, sim_faults={"error_rate": 1.0}, **FAST) as servers:
        async with run.dispatch(servers) as dispatcher:
            with pytest.raises(FailureBudgetExceeded, match="server_error"):
                await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
            servers[0].set_faults()
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    assert receipt.footer.n_failed == 0


async def test_rows_that_the_server_refuses_are_outcomes_and_not_tried_again(
    tmp_path: Path,
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 39)
    # The server's context is smaller than the plan believes.
    long = make_prompt(template, [{"role": "user", "content": "word " * 3000}])
    config = GenerationConfig(failure_budget=0.05)
    run = build_run(
        tmp_path, template, [[*prompts, long]], generation=config, context_length=16_384
    )
    with start_simulator(1, context_length=2100, **FAST) as servers:
        async with run.dispatch(servers) as dispatcher:
            receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
        assert servers[0].stats()["outcomes"]["refused"] == 1
    assert receipt.footer.failures == {"bad_request": 1}
    failure = run.read_outcomes(receipt.key)[-1].failure
    assert failure is not None
    assert not failure.retryable
    assert "word" not in failure.message
