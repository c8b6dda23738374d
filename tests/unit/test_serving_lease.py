"""Leases: renewed while the loop ticks, lapsed when it does not, let go at every end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from tasks.serving.lease import (
    LEASES_DIR,
    UNCLAIMED_SECONDS,
    Lease,
    LeaseWatch,
    drop_dead_leases,
)


def files(folder: Path) -> list[Path]:
    return list((folder / LEASES_DIR).glob("*.json"))


async def eventually(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_lease_is_renewed_while_the_loop_ticks(tmp_path: Path) -> None:
    with Lease(tmp_path, "run", 0.4):
        [path] = files(tmp_path)
        first = path.stat().st_mtime_ns
        await eventually(lambda: path.stat().st_mtime_ns > first)
    assert files(tmp_path) == []


async def test_a_hung_loop_renews_nothing(tmp_path: Path) -> None:
    with Lease(tmp_path, "run", 0.2):
        [path] = files(tmp_path)
        first = path.stat().st_mtime_ns
        await eventually(lambda: path.stat().st_mtime_ns > first)
        seen = {path.stat().st_mtime_ns}
        for _ in range(100):
            time.sleep(0.01)  # noqa: ASYNC251 - the very thing under test
            seen.add(path.stat().st_mtime_ns)
        # One renewal may be owed from before the loop hung, of the twenty that would be due.
        assert len(seen) <= 2


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
async def test_a_lease_is_let_go_at_every_end(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), Lease(tmp_path, "run", 30):
        assert len(files(tmp_path)) == 1
        raise error
    assert files(tmp_path) == []


def test_a_lease_needs_an_event_loop(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no running event loop"), Lease(tmp_path, "run", 30):
        pass


async def test_a_holder_with_path_characters_stays_in_the_folder(tmp_path: Path) -> None:
    with Lease(tmp_path / "fleet", "../../escape\0", 30):
        assert len(files(tmp_path / "fleet")) == 1
        assert os.listdir(tmp_path) == ["fleet"]  # noqa: PTH208


async def test_the_watch_counts_until_silence_is_too_long(tmp_path: Path) -> None:
    clock = Clock()
    watch = LeaseWatch(tmp_path, clock)
    assert watch.count_held() == 0
    assert not watch.is_unclaimed()
    with Lease(tmp_path, "one", 100), Lease(tmp_path, "two", 200):
        assert watch.count_held() == 2
        clock.now = 99
        assert watch.count_held() == 2
        one = next(path for path in files(tmp_path) if b'"one"' in path.read_bytes())
        os.utime(one)
        clock.now = 150
        assert watch.count_held() == 2
        clock.now = 210
        assert watch.count_held() == 1
        clock.now = 260
        assert watch.count_held() == 0
        assert files(tmp_path) == []
    assert watch.is_unclaimed()


async def test_the_time_of_day_plays_no_part(tmp_path: Path) -> None:
    watch = LeaseWatch(tmp_path, Clock())
    with Lease(tmp_path, "run", 100):
        [path] = files(tmp_path)
        os.utime(path, (0, 0))
        assert watch.count_held() == 1


async def test_a_damaged_lease_holds_nothing(tmp_path: Path) -> None:
    with Lease(tmp_path, "run", 100):
        files(tmp_path)[0].write_bytes(b"{")
        assert LeaseWatch(tmp_path).count_held() == 0


async def test_a_new_fleet_forgets_the_leases_of_dead_processes(tmp_path: Path) -> None:
    # Our own number, but of a process that started long ago: its successor has our pid.
    record = {"holder": "dead", "seconds": 900, "pid": os.getpid(), "started_at": 1.0}
    with Lease(tmp_path, "alive", 30):
        (tmp_path / LEASES_DIR / "dead.json").write_bytes(orjson.dumps(record))
        drop_dead_leases(tmp_path)
        [left] = files(tmp_path)
        assert b'"alive"' in left.read_bytes()


async def test_a_run_that_takes_the_fleet_up_replaces_the_claim_of_the_one_that_died(
    tmp_path: Path,
) -> None:
    record = {"holder": "dead", "seconds": 900, "pid": os.getpid(), "started_at": 1.0}
    (tmp_path / LEASES_DIR).mkdir(mode=0o700)
    (tmp_path / LEASES_DIR / "dead.json").write_bytes(orjson.dumps(record))
    watch = LeaseWatch(tmp_path, Clock())
    assert watch.count_held() == 1
    with Lease(tmp_path, "alive", 30):
        assert watch.count_held() == 1
    assert watch.count_held() == 0


async def test_a_fleet_that_nobody_ever_claimed_does_not_live_for_ever(tmp_path: Path) -> None:
    clock = Clock()
    watch = LeaseWatch(tmp_path, clock)
    clock.now = UNCLAIMED_SECONDS - 1
    assert not watch.is_unclaimed()
    clock.now = UNCLAIMED_SECONDS + 1
    assert watch.is_unclaimed()
    with Lease(tmp_path, "run", 100):
        assert not watch.is_unclaimed()
    assert watch.is_unclaimed()
