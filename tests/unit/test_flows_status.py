"""Watching a run: its parts from anywhere, its journals on the box, never in its way."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from flows.cli import app
from flows.command_line.status import Pace, StatusReader, read_status
from tasks.completions.generate import spool_folder
from tasks.completions.journal import Journal
from tasks.completions.record import Failure, Outcome
from tasks.settings import read_settings
from tasks.storage.layout import PartPlace, data_key, part_key, plan_key
from tasks.storage.manifest import write_manifest
from tasks.storage.record import Manifest, RetriedConversation, RetryList, Superseded
from tasks.storage.request import freeze_json, freeze_request
from tasks.storage.retry import freeze_retry
from tests.support.generation import GenerationRun
from tests.support.merging import assemble_all, plan_merge
from tests.support.outcomes import publish_outcomes
from tests.unit.test_completions_quality import GOOD

MANIFEST = Manifest(
    revision=0,
    created_at="2026-01-01T00:00:00+00:00",
    plan_sha="0" * 64,
    plan={},
    parts=(),
    supersedes={},
    samples=(),
    shards=(),
    counts={},
    composition={},
    report_key="",
    versions={},
)
LATER = Failure("disconnected", "", retryable=True, attempts=5, endpoints=[])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GenerationRun]:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    read_settings.cache_clear()
    run = plan_merge(tmp_path)
    freeze_request(run.store, {"model": "simulated"}, lambda: {"sources": []})
    freeze_json(run.store, plan_key(), run.plan.model_dump(mode="json"), "plan")
    yield run
    run.store.close()
    read_settings.cache_clear()


def make_outcome(prompt_id: str, failure: Failure | None = None) -> Outcome:
    turns = [] if failure else [replace(GOOD, prompt_id=prompt_id)]
    return Outcome(prompt_id, 0, "failed" if failure else "completed", turns, failure, "a")


async def write_journal(run: GenerationRun, *outcomes: Outcome) -> Journal:
    folder = spool_folder(read_settings().spool_dir, run.plan.sha, 0)
    journal = Journal(folder, fsync_every=64)
    for outcome in outcomes:
        journal.append_outcome(outcome)
    await journal.finish()
    return journal


async def test_on_the_box_the_journals_are_counted_with_their_writer_at_work(
    run: GenerationRun, tmp_path: Path
) -> None:
    prefix = str(tmp_path / "store")
    assert read_status(prefix)["n_done"] == 0
    outcomes = [make_outcome("p"), make_outcome("q", LATER), make_outcome("q"), make_outcome("r")]
    journal = await write_journal(run, *outcomes)
    with journal.path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(os.open(journal.path, os.O_WRONLY | os.O_APPEND), b'{"prompt_id": "torn')
        found = read_status(prefix)
    assert (found["n_done"], found["n_in_journals"], found["n_failed"]) == (3, 3, 0)
    assert found["n_output_tokens"] == 3 * GOOD.usage.completion_tokens
    journal.close()


async def test_looking_does_not_lock_the_next_writer_out(
    run: GenerationRun, tmp_path: Path
) -> None:
    stop, prefix = threading.Event(), str(tmp_path / "store")

    def look() -> None:
        while not stop.is_set():
            read_status(prefix)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(40):
            (await write_journal(run, make_outcome(f"p{number}"))).close()
    finally:
        stop.set()
        looking.join()
    assert read_status(prefix)["n_in_journals"] == 40


def test_a_published_part_counts_and_its_journals_do_not(
    run: GenerationRun, tmp_path: Path
) -> None:
    asyncio.run(write_journal(run, make_outcome("p"))).close()
    assemble_all(run)
    found = read_status(str(tmp_path / "store"))
    assert (found["n_done"], found["n_in_journals"], found["stage"]) == (12, 0, "assembling")


def test_a_run_whose_retry_lacks_its_part_is_not_done(run: GenerationRun, tmp_path: Path) -> None:
    assemble_all(run)
    write_manifest(run.store, MANIFEST)
    assert read_status(str(tmp_path / "store"))["stage"] == "done"
    failed = RetriedConversation(
        prompt_id="p",
        sample=0,
        chunk_id=0,
        part_key=data_key(0),
        part_sha256="0" * 64,
        status="failed",
        failure="deadline",
        flags=(),
        n_generations=0,
        n_prompt_tokens=0,
        n_output_tokens=0,
    )
    asked = RetryList(
        retry=1, plan_sha=run.plan.sha, reason="failures", gates=(), conversations=(failed,)
    )
    freeze_retry(run.store, asked)
    found = read_status(str(tmp_path / "store"))
    assert (found["stage"], found["n_retry_parts_to_come"]) == ("retrying", 1)
    run.store.create(part_key(PartPlace(1, 0, 0)), b"its rows")
    assert read_status(str(tmp_path / "store"))["stage"] == "assembling", "no manifest tells of it"


def test_speed_and_end_are_told_from_the_second_look_on() -> None:
    now = [0.0]
    pace = Pace(clock=lambda: now[0])
    look = {"stage": "generating", "n_conversations": 200, "n_done": 50, "n_output_tokens": 5000}
    assert "left" not in pace.add_to(look)
    now[0] = 10.0
    paced = pace.add_to({**look, "n_done": 100, "n_output_tokens": 10_000})
    assert paced["tokens_per_second_now"] == paced["tokens_per_second_watched"] == 500
    assert paced["seconds_left"] == [20, 20]
    assert "20 s left" in paced["left"]


def test_what_a_retry_has_mended_is_no_failure_of_a_run_that_is_done(
    run: GenerationRun, tmp_path: Path
) -> None:
    part = publish_outcomes(run, 0, [make_outcome(prompt.id) for prompt in run.prompts[0]])
    publish_outcomes(run, 1, [make_outcome(prompt.id) for prompt in run.prompts[1]])
    footer = part.footer.model_copy(update={"failures": {"deadline": 2, "aborted": 1}})
    manifest = MANIFEST.model_copy(
        update={
            "parts": (part.model_copy(update={"footer": footer}),),
            "superseded": {part.key: Superseded(n_rows=2, n_failed=2, failures={"deadline": 2})},
            "counts": {"n_failed": 1},
        }
    )
    write_manifest(run.store, manifest)
    found = read_status(str(tmp_path / "store"))
    assert (found["failures"], found["n_failed"]) == ({"aborted": 1}, 1)


def test_watching_ends_with_the_run_and_each_look_is_one_line_of_json(
    run: GenerationRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, read = threading.Event(), StatusReader.read

    def look(reader: StatusReader) -> dict[str, Any]:
        found = read(reader)
        looked.set()
        return found

    def end_later() -> None:
        assert looked.wait(60)
        assemble_all(run)
        write_manifest(run.store, MANIFEST)

    monkeypatch.setattr(StatusReader, "read", look)

    ending = threading.Thread(target=end_later)
    ending.start()
    arguments = ["status", str(tmp_path / "store"), "--watch", "--every", "0.1", "--json"]
    told = CliRunner().invoke(app, arguments)
    ending.join()
    assert told.exit_code == 0, told.output
    looks = [json.loads(line) for line in told.stdout.splitlines()]
    assert len(looks) > 1
    assert {look["schema"] for look in looks} == {"draftmill/status/1"}
    assert [look["stage"] for look in looks][-1] == "done"
