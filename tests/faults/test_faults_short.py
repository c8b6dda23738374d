"""The short form: everything at once, kills, and not one answer lost beyond what must be.

The long form is test_faults_long.py. The judge is put to the test on what came of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.audit import Audit, audit_run
from tests.support.besiege import besiege
from tests.support.doctoring import Rows, doctor_part, doctor_shard
from tests.support.s3 import S3Server

pytestmark = pytest.mark.timeout(900)

N_ROWS = 300
# Four attempts half a second apart would be used up, were attempts counted meanwhile.
SECONDS_AWAY = 4.0


@dataclass(frozen=True)
class Finished:
    """A run that came through, and the judge's words on it."""

    store: Path
    audit: Audit
    lost: list[int]


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, seaweedfs_server: S3Server, prefect_url: str
) -> Finished:
    """Run with everything against it; the judge must be content."""
    folder = tmp_path_factory.mktemp("besieged")
    with besiege(
        folder, seaweedfs_server, prefect_url, n_rows=N_ROWS, n_servers=3, chunk_size=60, seed=5
    ) as run:
        _, hanging, fickle = run.servers
        run.start()
        run.await_full()
        run.harm(hanging, hang=True)
        fickle.kill()
        run.bring_back_as_a_stranger(fickle)
        run.await_true(lambda: run.was_probed(fickle), "the stranger is looked at")
        run.harm(hanging)
        run.peaks.clear()
        run.await_full(away=[fickle])
        run.kill(rob=run.rob_journals)

        fickle.kill()
        run.bring_back([fickle])
        run.start()
        run.await_full()
        run.await_answers(run.luck.randrange(10, 40))
        run.kill(rob=run.rob_a_part)

        run.start()
        run.await_answers(5)
        run.take_all_away(SECONDS_AWAY)
        run.finish()
        audit, lost = run.judge(N_ROWS)
        return Finished(folder / "copy", audit, lost)


def test_whatever_fails_and_dies_no_row_is_lost_doubled_or_asked_for_without_need(
    finished: Finished,
) -> None:
    assert len(finished.audit.prompt_ids) == N_ROWS
    assert max(finished.lost) > 0, "no kill came while anything was in flight: nothing was shown"


def double(rows: Rows) -> Rows:
    return [*rows, rows[-1]]


def lose(rows: Rows) -> Rows:
    return rows[:-1]


def replace_one(rows: Rows) -> Rows:
    return [*rows[:-1], rows[0]]


def mix_attempts(rows: Rows) -> Rows:
    outcome = next(row for row in rows if len(row["completions"]) > 1)
    outcome["completions"][0]["content"] = "What another attempt said."
    return rows


def put_out_of_order(rows: Rows) -> Rows:
    return rows[::-1]


def supervise_the_prompt(rows: Rows) -> Rows:
    rows[0]["loss_mask"][0] = 1
    return rows


def supervise_less(rows: Rows) -> Rows:
    rows[0]["loss_mask"][-1] = 0
    return rows


def change_an_id(rows: Rows) -> Rows:
    rows[0]["input_ids"][-1] += 1
    return rows


@pytest.mark.parametrize(
    ("doctor", "change"),
    [
        *((doctor_part, change) for change in (double, lose, replace_one, put_out_of_order)),
        (doctor_part, mix_attempts),
        *((doctor_shard, change) for change in (double, lose, replace_one)),
        *((doctor_shard, change) for change in (supervise_the_prompt, supervise_less)),
        (doctor_shard, change_an_id),
    ],
    ids=lambda function: str(function.__name__),
)
def test_the_judge_sees_through_a_store_whose_hashes_agree(
    finished: Finished,
    tmp_path: Path,
    doctor: Callable[[Path, Callable[[Rows], Rows]], None],
    change: Callable[[Rows], Rows],
) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    doctor(store, lambda rows: rows)
    audit_run(store)
    doctor(store, change)
    with pytest.raises(AssertionError):
        audit_run(store)
