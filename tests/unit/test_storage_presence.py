"""A run that is started twice is told so; one that has crashed or ended is not mistaken for it."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from tasks.storage.layout import begun_key, presence_prefix
from tasks.storage.presence import (
    Presence,
    announce,
    describe_others,
    read_newest,
    take_leave,
)
from tasks.storage.store import ArtifactStore


def begin(store: ArtifactStore, name: str, **changes: object) -> None:
    process = psutil.Process()
    known = {
        "host": os.uname().nodename,
        "pid": process.pid,
        "process_started_at": process.create_time(),
        "began_at": "2025-01-01T00:00:00+00:00",
    }
    presence = Presence.model_validate({**known, **changes})
    store.create(begun_key(name), presence.model_dump_json().encode())


def test_the_second_of_two_runs_says_so_and_a_third_sees_both(file_store: ArtifactStore) -> None:
    first = announce(file_store)
    assert list(describe_others(file_store, first)) == []
    second = announce(file_store)
    (told,) = describe_others(file_store, second)
    assert "another run is at work at this prefix" in told
    assert f"process {os.getpid()}" in told
    assert "both may go on" in told
    assert len(list(describe_others(file_store, announce(file_store)))) == 2


def test_a_run_that_ended_is_not_told_of(file_store: ArtifactStore) -> None:
    take_leave(file_store, announce(file_store))
    assert list(describe_others(file_store, announce(file_store))) == []


def test_a_run_at_work_is_told_of_before_a_later_one_that_ended(file_store: ArtifactStore) -> None:
    def read() -> tuple[str, bool]:
        newest = read_newest(file_store, [stat.key for stat in file_store.list()])
        assert newest is not None
        return newest.began.began_at[:4], newest.ended is not None

    begin(file_store, "20240101-killed", began_at="2024", process_started_at=1.0)
    begin(file_store, "20250101-ours", began_at="2025")
    begin(file_store, "20260101-killed", began_at="2026", process_started_at=1.0)
    begin(file_store, "20270101-twin", began_at="2027")
    take_leave(file_store, "20270101-twin", "Cancelled")
    assert read() == ("2025", False)
    take_leave(file_store, "20250101-ours", "Completed")
    assert read() == ("2027", True)


def test_a_run_that_was_killed_is_not_told_of(file_store: ArtifactStore) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        started = psutil.Process(process.pid).create_time()
        begin(file_store, "killed", pid=process.pid, process_started_at=started)
        assert len(list(describe_others(file_store, "ours"))) == 1
        process.kill()
        process.wait()
    assert list(describe_others(file_store, "ours")) == []


def test_a_pid_that_is_used_again_is_no_run(file_store: ArtifactStore) -> None:
    begin(file_store, "before-a-reboot", process_started_at=1.0)
    assert list(describe_others(file_store, "ours")) == []


def test_of_a_run_on_another_host_no_more_is_said_than_is_known(file_store: ArtifactStore) -> None:
    begin(file_store, "elsewhere", host="other-box", pid=4_000_000)
    (told,) = describe_others(file_store, "ours")
    assert "on other-box" in told
    assert "has not said that it ended" in told


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_what_is_damaged_there_is_of_no_weight(file_store: ArtifactStore, content: bytes) -> None:
    file_store.create(f"{presence_prefix()}x.begun.json", content)
    assert list(describe_others(file_store, "ours")) == []
