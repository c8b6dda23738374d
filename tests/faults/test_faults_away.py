"""Every server away for a minute, a request hung to its deadline, kills outside of generation."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.besiege import besiege
from tests.support.faulted_run import SECONDS, SLOTS, FaultedRun
from tests.support.s3 import S3Server

pytestmark = pytest.mark.real

N_ROWS = 1000
SECONDS_AWAY = 60.0


@pytest.mark.timeout(900)
def test_all_servers_away_for_a_minute_fail_no_row_and_kills_at_any_stage_lose_none(
    tmp_path: Path, seaweedfs: S3Server, prefect_url: str
) -> None:
    with besiege(
        tmp_path, seaweedfs, prefect_url, n_rows=N_ROWS, n_servers=8, chunk_size=250, seed=10
    ) as run:
        kill_while_it_extracts(run)
        run.start()
        run.await_full()
        run.take_all_away(SECONDS_AWAY)
        run.peaks.clear()
        run.await_full()
        let_the_deadline_pass(run)
        run.hurry()
        kill_while_it_assembles(run)
        run.start()
        summary = run.finish()
        audit, _ = run.judge(N_ROWS)
        assert summary["counts"]["n_completed"] == audit.statuses["completed"]
    assert len(run.kills) == 3


def let_the_deadline_pass(run: FaultedRun) -> None:
    """Let a server hang until what it holds is given up and asked of the others."""
    hanging = run.servers[1]
    run.harm(hanging, hang=True)
    run.await_ends(SLOTS, "aborted", "disconnected")
    run.harm(hanging)


def kill_while_it_extracts(run: FaultedRun) -> None:
    """Kill the command itself, once its request is frozen."""
    with run.cli.start("run", str(run.config)) as process:
        deadline = time.monotonic() + SECONDS
        while not run.list_keys("_run/request.json"):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(run.luck.uniform(0.1, 1.5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    run.note_kill()


def kill_while_it_assembles(run: FaultedRun) -> None:
    """Kill twice more: among the samples, and between the dataset and its manifest."""
    run.await_true(lambda: len(run.list_keys("tokens/")) > 1, "samples of some parts")
    run.kill()
    run.start()
    run.await_true(lambda: bool(run.list_keys("dataset/")), "a shard")
    run.kill()
