"""The spool: what was written comes back, whatever happened to the process."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tasks.completions.journal import Journal
from tasks.completions.record import Completion, Failure, Outcome
from tasks.completions.replay import Replay
from tasks.errors import SpoolFailed
from tests.unit.test_completions_quality import GOOD

RETRYABLE = Failure("disconnected", "", retryable=True, attempts=5, endpoints=[])
FINAL = Failure("bad_request", "", retryable=False, attempts=1, endpoints=[])


def make_outcome(prompt_id: str, text: str = "yes", failure: Failure | None = None) -> Outcome:
    if failure is not None:
        return Outcome(prompt_id, 0, "failed", [], failure, "a")
    return Outcome(prompt_id, 0, "completed", [turn(prompt_id, 0, text)], None, "a")


def turn(prompt_id: str, generation: int, text: str = "yes") -> Completion:
    return replace(GOOD, prompt_id=prompt_id, generation=generation, content=text)


def read_texts(folder: Path) -> dict[str, str]:
    with Replay(folder) as replay:
        outcomes = {
            key[0]: msgspec.json.decode(place.read(), type=Outcome)
            for key, place in replay.rows.items()
        }
    return {name: o.completions[0].content if o.completions else "" for name, o in outcomes.items()}


async def write(folder: Path, *outcomes: Outcome) -> Journal:
    journal = Journal(folder, fsync_every=2)
    for outcome in outcomes:
        place = journal.append_outcome(outcome)
        assert msgspec.json.decode(place.read(), type=Outcome) == outcome
    await journal.finish()
    return journal


async def test_what_is_journalled_comes_back_in_the_bytes_of_the_part(tmp_path: Path) -> None:
    outcome = make_outcome("p", "line one\nline two \u2028 \U0001f600")
    journal = await write(tmp_path, outcome)
    with Replay(tmp_path) as replay:
        row = replay.rows["p", 0].read()
        assert replay.paths == [journal.path]
    assert row == msgspec.json.encode(outcome)
    assert b"\n" not in row
    journal.close()


async def test_a_record_is_in_the_file_when_append_returns(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fsync_every=1000)
    journal.append_outcome(make_outcome("p"))
    assert journal.path.read_bytes().count(b"\n") == 1
    await journal.finish()
    journal.close()


async def test_a_torn_tail_is_dropped_wherever_it_is_torn(tmp_path: Path) -> None:
    journal = await write(tmp_path, make_outcome("p"), make_outcome("q"))
    whole = journal.path.read_bytes()
    journal.close()
    end_of_first = whole.index(b"\n") + 1
    for size in (end_of_first, end_of_first + 1, len(whole) - 2, len(whole) - 1):
        journal.path.write_bytes(whole[:size])
        assert set(read_texts(tmp_path)) == {"p"}


async def test_an_unreadable_line_costs_its_own_row_only(tmp_path: Path) -> None:
    journal = await write(tmp_path, make_outcome("p"), make_outcome("q"), make_outcome("r"))
    lines = journal.path.read_bytes().splitlines(keepends=True)
    lines[1] = b"\0" * (len(lines[1]) - 1) + b"\n"
    journal.path.write_bytes(b"".join(lines))
    assert set(read_texts(tmp_path)) == {"p", "r"}
    journal.close()


async def test_the_first_terminal_outcome_wins_and_a_retryable_one_yields(tmp_path: Path) -> None:
    journals = [
        await write(tmp_path, make_outcome("p", failure=RETRYABLE), make_outcome("q", "first")),
        await write(
            tmp_path,
            make_outcome("p", "second"),
            make_outcome("q", "second"),
            make_outcome("r", failure=RETRYABLE),
            make_outcome("s", failure=FINAL),
        ),
        await write(tmp_path, make_outcome("p", "third"), make_outcome("s", "third")),
    ]
    assert read_texts(tmp_path) == {"p": "second", "q": "first", "s": ""}
    for journal in journals:
        journal.close()


async def test_a_journal_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    held = Journal(tmp_path, fsync_every=64)
    held.append_outcome(make_outcome("p"))
    with Replay(tmp_path) as replay:
        assert (replay.rows, replay.paths) == ({}, [])
    await held.finish()
    assert set(read_texts(tmp_path)) == {"p"}
    held.close()


async def test_a_journal_whose_empty_file_a_reader_holds_is_begun_under_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Path] = []
    real = fcntl.flock

    def be_late(fd: int, how: int) -> None:
        """Let a reader take the first file between its creation and our lock."""
        if not held and how == fcntl.LOCK_EX | fcntl.LOCK_NB:
            (path,) = tmp_path.glob("*.jsonl")
            held.append(path)
            reader = os.open(path, os.O_RDONLY)
            real(reader, fcntl.LOCK_SH)
        real(fd, how)

    monkeypatch.setattr("tasks.completions.journal.fcntl.flock", be_late)
    journal = Journal(tmp_path, fsync_every=64)
    journal.append_outcome(make_outcome("p"))
    assert journal.path != held[0]
    assert not held[0].exists(), "the empty one is taken away"
    await journal.finish()
    journal.close()
    assert set(read_texts(tmp_path)) == {"p"}


async def test_an_interrupted_conversation_comes_back_with_its_attempt(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fsync_every=64)
    for generation in range(2):
        journal.append_turn("try-1", turn("p", generation))
        journal.append_turn("try-1", turn("q", generation))
    journal.append_outcome(replace(make_outcome("q"), attempt="try-1"))
    await journal.finish()
    later = Journal(tmp_path, fsync_every=64)
    later.append_turn("try-1", turn("p", 2))
    await later.finish()
    with Replay(tmp_path) as replay:
        assert set(replay.half_done) == {("p", 0)}
        half = replay.half_done["p", 0]
    assert half.attempt == "try-1"
    assert [completion.generation for completion in half.turns] == [0, 1, 2]
    journal.close()
    later.close()


async def test_turns_of_a_conversation_that_failed_are_not_gone_on_with(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fsync_every=64)
    journal.append_turn("try-1", turn("p", 0))
    outcome = Outcome("p", 0, "partial", [turn("p", 0)], RETRYABLE, "try-1")
    journal.append_outcome(outcome)
    await journal.finish()
    with Replay(tmp_path) as replay:
        assert (replay.rows, replay.half_done) == ({}, {})
    journal.close()


async def test_versions_of_servers_are_noted_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, fsync_every=64)
    for _ in range(3):
        journal.note_server("http://127.0.0.1:1", "0.5.12")
    await journal.finish()
    assert journal.path.read_bytes().count(b"\n") == 1
    with Replay(tmp_path) as replay:
        assert replay.servers == {"http://127.0.0.1:1": "0.5.12"}
    journal.close()


def write_half(fd: int, data: bytes, real: Callable[[int, bytes], int] = os.write) -> int:
    return real(fd, data[: len(data) // 2])


def write_none(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("broken", [write_half, write_none])
async def test_a_full_disk_ends_cleanly_and_hides_no_earlier_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[int, bytes], int]
) -> None:
    journal = Journal(tmp_path, fsync_every=64)
    journal.append_outcome(make_outcome("p"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        with pytest.raises(SpoolFailed, match="No space left"):
            journal.append_outcome(make_outcome("q"))
    journal.append_outcome(make_outcome("r"))
    await journal.finish()
    assert set(read_texts(tmp_path)) == {"p", "r"}
    journal.close()


async def test_a_failed_fsync_fails_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    journal = Journal(tmp_path, fsync_every=1)
    monkeypatch.setattr(os, "fdatasync", fail)
    journal.append_outcome(make_outcome("p"))
    assert journal._syncing is not None
    await journal._syncing
    with pytest.raises(SpoolFailed, match="Input/output"):
        journal.append_outcome(make_outcome("q"))
    await journal.finish()
    journal.close()


async def test_a_folder_that_a_twin_takes_away_is_made_again(tmp_path: Path) -> None:
    folder, done = tmp_path / "chunk", threading.Event()

    def clear() -> None:
        while not done.is_set():
            with suppress(OSError):
                folder.rmdir()

    twin = threading.Thread(target=clear)
    twin.start()
    try:
        for _ in range(300):
            journal = Journal(folder, fsync_every=1)
            journal.close()
            journal.path.unlink()
    finally:
        done.set()
        twin.join()


def test_a_spool_that_cannot_be_made_is_the_users_to_mend(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file")
    with pytest.raises(SpoolFailed) as failed:
        Journal(tmp_path / "spool" / "chunk", fsync_every=64)
    assert "DRAFTMILL_HOME" in failed.value.remedy
