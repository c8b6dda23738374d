"""The long form: thousands of prompts, eight servers, and kill -9 again and again at any moment.

All eight away at once, and kills outside of generation: test_faults_away.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.besiege import besiege
from tests.support.faulted_run import FaultedRun
from tests.support.s3 import S3Server

pytestmark = pytest.mark.real

N_ROWS = 3000
CHUNK_SIZE = 250
N_KILLS = 20


@pytest.mark.timeout(1800)
def test_through_twenty_kills_and_every_fault_no_row_is_lost_doubled_or_asked_for_without_need(
    tmp_path: Path, seaweedfs: S3Server, prefect_url: str
) -> None:
    with besiege(
        tmp_path, seaweedfs, prefect_url, n_rows=N_ROWS, n_servers=8, chunk_size=CHUNK_SIZE, seed=9
    ) as run:
        for number in range(N_KILLS):
            run.start()
            if number % 5 == 4:
                run.await_seconds(run.luck.uniform(0.2, 4.0))
            else:
                run.await_full(away=[run.servers[3]] if number == 7 else [])
                strike(run, number)
                run.await_answers(run.luck.randrange(1, 60))
            run.kill(rob={10: run.rob_journals, 13: run.rob_a_part}.get(number))
            recover(run, number)
        run.hurry()
        told = run.cli("run", str(run.config), "--json")
        assert told.code == 0, told.err
        audit, lost = run.judge(N_ROWS)
        assert told.json["counts"]["n_completed"] == audit.statuses["completed"]
    assert len(run.kills) == N_KILLS
    assert sum(n_lost > 0 for n_lost in lost) > N_KILLS / 4, "few came while much was in flight"


def strike(run: FaultedRun, number: int) -> None:
    """Let a server hang, die under the run and come back, or come back with another model."""
    hanging, mortal, fickle = run.servers[1:4]
    if number in (1, 2, 11):
        run.harm(hanging, hang=True)
    if number == 3:
        mortal.kill()
        run.await_answers(60)
        run.bring_back([mortal])
        run.peaks.clear()
        run.await_full()
    if number == 6:
        fickle.kill()
        run.bring_back_as_a_stranger(fickle)
        run.await_true(lambda: run.was_probed(fickle), "the stranger is looked at")
        run.await_answers(60)


def recover(run: FaultedRun, number: int) -> None:
    """End what `strike` began; the stranger stays through the next start, and is refused there."""
    if number in (1, 2, 11):
        run.harm(run.servers[1])
    if number == 7:
        run.servers[3].kill()
        run.bring_back([run.servers[3]])
