"""The answers of parts are counted for the report, of old parts too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from msgspec.structs import replace

from tasks.completions.measure import measure_generation
from tasks.completions.record import Failure, Outcome, decode_outcome
from tasks.storage.layout import PartPlace, part_key
from tasks.storage.part import publish_part
from tasks.storage.record import PartHeader, PartReceipt
from tasks.storage.writer import PartWriter
from tests.support.generation import GenerationRun, build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, conclude

NOON = 1_900_000_000.0
URL = "http://127.0.0.1:1"


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return row


def as_of_old(row: dict[str, Any]) -> dict[str, Any]:
    for completion in row["completions"]:
        del completion["ended_at"], completion["retried"]
    return row


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    template = load_template()
    prompts = [make_prompt(template, ask(f"What is {i}?"), row=i) for i in range(4)]
    return build_run(tmp_path, template, [prompts])


def answer_all(run: GenerationRun) -> list[Outcome]:
    """Answer three, the second after two failures, and lose the fourth."""
    outcomes = [
        conclude(
            complete(
                run,
                prompt,
                "Hm.",
                "Well.",
                latency_seconds=2.0,
                ended_at=NOON + 2 * i,
                retried=["deadline", "server_error"] if i == 1 else [],
            )
        )
        for i, prompt in enumerate(run.prompts[0][:3])
    ]
    failure = Failure("deadline", "no answer within 60 s", True, 5, [URL])
    lost = run.prompts[0][3].id
    return [*outcomes, Outcome(lost, 0, "failed", [], failure, "a1")]


def publish(
    run: GenerationRun,
    outcomes: Sequence[Outcome],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    retry: int = 0,
    **footer: Any,
) -> PartReceipt:
    path = run.spool_dir / "part"
    path.parent.mkdir(parents=True, exist_ok=True)
    chunk = run.plan.chunks[0]
    header = PartHeader(
        plan_sha=run.plan.sha, chunk_id=0, input_sha256=chunk.input_sha256, retry=retry
    )
    writer = PartWriter(path, header)
    for outcome in outcomes:
        writer.append(orjson.dumps(change(orjson.loads(msgspec.json.encode(outcome)))))
    counts = dict.fromkeys(("n_truncated", "n_partial", "n_prompt_tokens", "n_output_tokens"), 0)
    ends = {"n_completed": 3, "n_failed": 1, "n_generations": 3}
    rest = {"failures": {}, "gates": {}, "server_versions": {URL: "0.5.23"}}
    writer.finish({**counts, **ends, **rest, **footer})
    conversations = [(outcome.prompt_id, outcome.sample) for outcome in outcomes]
    return publish_part(run.store, part_key(PartPlace(retry, 0, 0)), path, conversations)


def test_every_answer_is_counted_with_its_time_server_and_retries(run: GenerationRun) -> None:
    part = publish(run, answer_all(run), plain, server_slots={URL: 2})
    figures = measure_generation(run.store, [part], {})
    assert (figures.n_answers, figures.n_timed, figures.n_retried) == (3, 3, 1)
    assert figures.retries == {"deadline": 1, "server_error": 1}
    assert figures.seconds == pytest.approx(6)
    assert figures.occupancy == pytest.approx(0.5)
    [server] = figures.endpoints
    assert (server.base_url, server.server_version, server.slots) == (URL, "0.5.23", 2)
    [example] = figures.examples
    assert (example.kind, example.n_attempts) == ("deadline", 5)


def test_a_part_of_old_without_times_is_read_as_before(run: GenerationRun) -> None:
    outcomes = answer_all(run)
    part = publish(run, outcomes, as_of_old)
    figures = measure_generation(run.store, [part], {})
    assert (figures.n_answers, figures.n_timed, figures.retries) == (3, 0, {})
    old = as_of_old(orjson.loads(msgspec.json.encode(outcomes[0])))
    read = decode_outcome(orjson.dumps(old))
    changes: dict[str, Any] = {"ended_at": 0.0, "retried": []}
    assert read.completions == [replace(outcomes[0].completions[0], **changes)]


def test_a_failure_that_a_retry_has_mended_is_not_told(run: GenerationRun) -> None:
    outcomes = answer_all(run)
    part = publish(run, outcomes, plain)
    figures = measure_generation(run.store, [part], {part.key: {(outcomes[-1].prompt_id, 0)}})
    assert figures.examples == ()
    assert figures.n_answers == 3


def test_answers_that_a_retry_left_as_they_were_are_paid_for_once(run: GenerationRun) -> None:
    outcomes = answer_all(run)
    part = publish(run, outcomes, plain)
    anew = [outcomes[0], replace(outcomes[1], attempt="of the retry")]
    retried = publish(run, anew, plain, retry=1, n_completed=2, n_failed=0, n_generations=2)
    gone = {part.key: {(outcome.prompt_id, outcome.sample) for outcome in anew}}
    assert measure_generation(run.store, [part, retried], gone).n_answers == 4
