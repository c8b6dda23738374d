"""Published parts are mended beside themselves: what is bad or failed is asked anew, once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.chat.template import ChatTemplate
from tasks.completions.config import Gate, GatesConfig, GenerationConfig
from tasks.completions.context import GenerationContext
from tasks.completions.generate import generate_chunk, generate_retry
from tasks.completions.record import Failure, Outcome
from tasks.completions.rolling import RunWatch
from tasks.completions.survey import count_superseded, freeze_failures, freeze_flagged
from tasks.errors import (
    FailureBudgetExceeded,
    MaskError,
    RunBudgetExceeded,
    StoppedByGate,
    TokenMismatch,
)
from tasks.storage.part import find_part
from tasks.storage.retry import Standing, find_retry_part, read_retries, split_retry, sum_standing
from tests.support.generation import GenerationRun, build_run, invent_prompts, load_template
from tests.support.outcomes import complete, conclude, publish_outcomes
from tests.support.simulator import SimulatedServer, start_simulator

FAST = {"sim_time_scale": 0.01, "sim_mean_tokens": 60, "max_running_requests": 8}
QUICK = GenerationConfig(attempts=1, backoff_seconds=0.01, eject_after=100, failure_budget=0.9)
REDO = GatesConfig(accept=("duplicate",), redo=("empty_answer",))


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with start_simulator(1, **FAST) as servers:
        yield servers[0]


@pytest.fixture(autouse=True)
def _sound(server: SimulatedServer) -> None:
    server.set_faults()


def build(folder: Path, template: ChatTemplate, n_samples: int = 1) -> GenerationRun:
    """Plan two chunks of 30 prompts."""
    prompts = invent_prompts(template, 60)
    chunks = [prompts[:30], prompts[30:]]
    run = build_run(folder, template, chunks, generation=QUICK, n_samples=n_samples)
    run.gates = GatesConfig(accept=("duplicate", "empty_answer"))
    return run


def stand(run: GenerationRun) -> Standing:
    """Find what stands in the store."""
    store, sha = run.store, run.plan.sha
    lists = tuple(read_retries(store, sha))
    shares = [share for retry in lists for share in split_retry(retry)]
    parts = (find_part(store, chunk.id, sha, chunk.input_sha256) for chunk in run.plan.chunks)
    retries = (find_retry_part(store, sha, share) for share in shares)
    return Standing(
        tuple(part for part in parts if part), tuple(part for part in retries if part), lists
    )


def count_flagged(run: GenerationRun, gate: Gate) -> int:
    """Count the conversations that still stand with a flag, by footers and lists alone."""
    standing = stand(run)
    gone = count_superseded(run.store, run.plan, standing, run.gates)
    flagged = sum(part.footer.gates[gate] for part in standing.all_parts)
    return flagged - sum(counts.gates.get(gate, 0) for counts in gone.values())


def wait_completed(server: SimulatedServer, n_requests: int) -> None:
    deadline = time.monotonic() + 60
    while count_completed(server) < n_requests:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def count_completed(server: SimulatedServer) -> int:
    return int(server.stats()["outcomes"].get("completed", 0))


async def generate_all(context: GenerationContext) -> None:
    for chunk in context.plan.chunks:
        await generate_chunk(context, chunk)


async def retry_all(run: GenerationRun, context: GenerationContext) -> None:
    for share in stand(run).list_open():
        await generate_retry(context, share)


async def test_flagged_rows_of_published_parts_are_asked_anew_until_none_is_left(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template(), n_samples=2)
    server.set_faults(empty_answer_rate=0.2)
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
        n_flagged = count_flagged(run, "empty_answer")
        assert 0 < n_flagged < 120
        run.gates = REDO
        frozen = freeze_flagged(run.store, run.plan, stand(run), run.gates)
        assert frozen is not None
        assert len(frozen.conversations) == n_flagged

        # The servers are not mended: the same gate stops it again, and nothing is published.
        with pytest.raises(StoppedByGate, match=r"gates\.redo=\[empty_answer\]"):
            await retry_all(run, run.context(dispatcher))
        assert stand(run).retries == ()

        server.set_faults()
        n_before = count_completed(server)
        await retry_all(run, run.context(dispatcher))
        assert count_completed(server) - n_before == n_flagged
        assert count_flagged(run, "empty_answer") == 0
        assert freeze_flagged(run.store, run.plan, stand(run), run.gates) is None
        await retry_all(run, run.context(dispatcher))
        assert count_completed(server) - n_before == n_flagged, "it is done once"
    standing = stand(run)
    assert [part.header.retry for part in standing.retries] == [1]
    outcomes = run.read_outcomes(standing.retries[0].key)
    asked = [(entry.prompt_id, entry.sample) for entry in frozen.conversations]
    assert [(outcome.prompt_id, outcome.sample) for outcome in outcomes] == asked
    gone = count_superseded(run.store, run.plan, standing, run.gates)
    assert sum_standing(standing.all_parts, gone)["n_rows"] == 120


async def test_a_retry_that_is_cut_off_goes_on_where_it_was(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    server.set_faults(empty_answer_rate=1.0)
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
        run.gates = REDO
        freeze_flagged(run.store, run.plan, stand(run), run.gates)
        server.set_faults(slow=5.0)
        n_before = count_completed(server)
        retrying = asyncio.create_task(retry_all(run, run.context(dispatcher)))
        await asyncio.to_thread(wait_completed, server, n_before + 10)
        retrying.cancel()
        await asyncio.gather(retrying, return_exceptions=True)
        server.set_faults()
        await retry_all(run, run.context(dispatcher))
        n_aborted_then = count_completed(server) - n_before - 60
        assert n_aborted_then <= 8, "what was in flight is asked again, and no more"
    assert count_flagged(run, "empty_answer") == 0


async def test_failed_conversations_are_asked_anew_and_what_fails_again_is_lost_as_before(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    server.set_faults(error_rate=0.3)
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
        n_failed = sum(part.footer.n_failed for part in stand(run).parts)
        assert n_failed > 0
        frozen = freeze_failures(run.store, run.plan, stand(run), run.gates)
        assert frozen is not None
        assert len(frozen.conversations) == n_failed
        # Whatever the budget of a chunk: nothing more can be lost here.
        server.set_faults(error_rate=1.0)
        await retry_all(run, run.context(dispatcher))
        again = freeze_failures(run.store, run.plan, stand(run), run.gates)
        assert again is not None
        assert {entry.part_key for entry in again.conversations} == {stand(run).retries[0].key}
        server.set_faults()
        await retry_all(run, run.context(dispatcher))
    standing = stand(run)
    assert freeze_failures(run.store, run.plan, standing, run.gates) is None
    gone = count_superseded(run.store, run.plan, standing, run.gates)
    sums = sum_standing(standing.all_parts, gone)
    assert (sums["n_rows"], sums["n_failed"]) == (60, 0)


async def test_turns_that_a_broken_off_conversation_has_are_not_given_up_for_none(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    failure = Failure("deadline", "too slow", retryable=True, attempts=3, endpoints=[])
    for chunk in run.plan.chunks:
        outcomes = []
        for prompt in run.prompts[chunk.id]:
            whole = conclude(complete(run, prompt, "Hm.\n", f"\n\nAnswer {prompt.source.row}."))
            outcomes.append(whole)
        first = outcomes[0]
        outcomes[0] = Outcome(
            first.prompt_id, first.sample, "partial", first.completions, failure, "a1"
        )
        publish_outcomes(run, chunk.id, outcomes)
    frozen = freeze_failures(run.store, run.plan, stand(run), run.gates)
    assert frozen is not None
    assert [entry.status for entry in frozen.conversations] == ["partial", "partial"]
    server.set_faults(error_rate=1.0)
    async with run.dispatch([server]) as dispatcher:
        await retry_all(run, run.context(dispatcher))
    (part,) = stand(run).retries
    assert (part.footer.n_partial, part.footer.n_failed) == (2, 0)
    assert all(outcome.completions for outcome in run.read_outcomes(part.key))


async def test_a_part_made_anew_since_the_retry_is_counted_as_it_is_now(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    server.set_faults(error_rate=0.3)
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
        freeze_failures(run.store, run.plan, stand(run), run.gates)
        server.set_faults()
        await retry_all(run, run.context(dispatcher))
    damaged = stand(run).parts[0].key
    (tmp_path / "store" / damaged).write_bytes(b"damaged")
    run = build(tmp_path, load_template())
    async with run.dispatch([server]) as dispatcher:
        await generate_all(run.context(dispatcher))
    standing = stand(run)
    assert standing.parts[0].key != damaged
    gone = count_superseded(run.store, run.plan, standing, run.gates)
    # Every conversation of the new revision has an answer, those that the retry replaces as well.
    assert gone[standing.parts[0].key].n_failed == 0
    sums = sum_standing(standing.all_parts, gone)
    assert (sums["n_rows"], sums["n_completed"] + sums["n_truncated"]) == (60, 60)


@pytest.mark.parametrize("error", [MaskError("nothing is supervised"), TokenMismatch("other ids")])
async def test_a_canary_that_cannot_be_trained_on_is_not_published_and_is_asked_anew(
    tmp_path: Path, server: SimulatedServer, error: Exception
) -> None:
    run = build(tmp_path, load_template())
    seen: list[Path] = []

    async def refuse(path: Path) -> None:
        seen.append(path)
        raise error

    async def accept(path: Path) -> None:
        seen.append(path)

    async with run.dispatch([server]) as dispatcher:
        n_before = count_completed(server)
        with pytest.raises(type(error)):
            await generate_chunk(run.context(dispatcher, inspect=refuse), run.plan.chunks[0])
        assert list(run.store.list("data/")) == []
        await generate_chunk(run.context(dispatcher, inspect=accept), run.plan.chunks[0])
        assert count_completed(server) - n_before == 60, "its answers are not taken up"
        await generate_chunk(run.context(dispatcher, inspect=refuse), run.plan.chunks[1])
    assert len(seen) == 2, "only the canary is looked at"


async def test_what_no_chunk_shows_alone_stops_the_run(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    # A chunk of 30 is never judged by itself: min_rows is 50.
    run.gates = GatesConfig(accept=("duplicate",))
    server.set_faults(empty_answer_rate=0.3)
    watch = RunWatch(run.gates, n_conversations=60, failure_budget=1.0)
    async with run.dispatch([server]) as dispatcher:
        context = run.context(dispatcher, watch=watch)
        await generate_chunk(context, run.plan.chunks[0])
        with pytest.raises(StoppedByGate, match="latest conversations of the run"):
            await generate_chunk(context, run.plan.chunks[1])
        # Taken up by another process: footers and journals say the same.
        n_before = count_completed(server)
        anew = RunWatch(run.gates, n_conversations=60, failure_budget=1.0)
        anew.recall(stand(run).parts)
        with pytest.raises(StoppedByGate):
            await generate_chunk(run.context(dispatcher, watch=anew), run.plan.chunks[1])
        assert count_completed(server) == n_before
    assert len(stand(run).parts) == 1


async def test_the_run_has_a_failure_budget_of_its_own(
    tmp_path: Path, server: SimulatedServer
) -> None:
    run = build(tmp_path, load_template())
    server.set_faults(error_rate=0.3)
    watch = RunWatch(run.gates, n_conversations=60, failure_budget=0.05)
    async with run.dispatch([server]) as dispatcher:
        with pytest.raises(RunBudgetExceeded) as ended:
            await generate_all(run.context(dispatcher, watch=watch))
    assert isinstance(ended.value, FailureBudgetExceeded)
    assert stand(run).parts == (), "nothing is published that could still be tried again"
