"""The judge of what was asked can say no."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.audit_requests import Kill, count_twice, judge_kills


def answered(name: str, at: float, outcome: str = "completed") -> dict[str, Any]:
    return {"prompt_hash": name, "time": at, "outcome": outcome, "n_tokens": 9}


LOG = [answered("a", 1.0), answered("b", 2.0), answered("c", 3.0)]
KILL = Kill(at=5.0, kept=frozenset({"a", "b"}), n_allowed=1)


def test_what_was_in_flight_at_a_kill_may_be_lost() -> None:
    log = [*LOG, answered("c", 6.0), answered("d", 7.0)]
    assert judge_kills(log, [KILL]) == [1]
    assert count_twice(log, [KILL]) == 1


@pytest.mark.parametrize("outcome", ["completed", "dropped", "error_500"])
def test_what_was_kept_must_not_be_asked_for_again(outcome: str) -> None:
    with pytest.raises(AssertionError, match="1 answers that were kept were asked for again"):
        judge_kills([*LOG, answered("a", 6.0, outcome)], [KILL])


def test_what_the_test_took_away_later_may_be_asked_for_after_that() -> None:
    robbed = Kill(at=8.0, kept=frozenset({"b", "c"}), n_allowed=2)
    log = [*LOG, answered("c", 6.0), answered("a", 9.0)]
    assert judge_kills(log, [KILL, robbed]) == [1, 0]


def test_a_kill_must_not_cost_more_than_was_in_flight() -> None:
    with pytest.raises(AssertionError, match="2 answers were lost, 1 allowed"):
        judge_kills([*LOG, answered("d", 4.0)], [KILL])


def test_nothing_is_asked_for_twice_within_one_run() -> None:
    with pytest.raises(AssertionError, match="d was asked for twice within one run"):
        count_twice([*LOG, answered("d", 6.0), answered("d", 7.0)], [KILL])
