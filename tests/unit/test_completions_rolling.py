"""Chunks judged together: the latest conversations of the run, and what it may lose in all."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.rolling import RunWatch
from tasks.errors import RunBudgetExceeded
from tasks.storage.record import PartFooter, PartHeader, PartReceipt, Superseded

GATES: tuple[Gate, ...] = get_args(Gate)


def only(gate: Gate, **fields: Any) -> GatesConfig:
    """Judge one gate, at 5%, over a window of 200."""
    others: dict[str, Any] = {name: 1.0 for name in GATES if name != gate}
    return GatesConfig(**{"window": 200, gate: 0.05, **others, **fields})


def watch(gates: GatesConfig, *, n_conversations: int = 1000, budget: float = 1.0) -> RunWatch:
    return RunWatch(gates, n_conversations=n_conversations, failure_budget=budget)


def add(
    watched: RunWatch, chunk_id: int, n: int, *flags: Gate, at: int = 0, replayed: bool = False
) -> None:
    for number in range(n):
        watched.add(chunk_id, f"p{chunk_id}-{at + number}#s0", flags, replayed=replayed)


def publish(chunk_id: int, n_rows: int, n_failed: int = 0, **gates: int) -> PartReceipt:
    footer = PartFooter(
        n_rows=n_rows,
        n_completed=n_rows - n_failed,
        n_truncated=0,
        n_partial=0,
        n_failed=n_failed,
        n_generations=n_rows - n_failed,
        n_prompt_tokens=0,
        n_output_tokens=0,
        failures={},
        gates={**dict.fromkeys(GATES, 0), **gates},
        server_versions={},
        rows_sha256="0" * 64,
    )
    header = PartHeader(plan_sha="a" * 64, chunk_id=chunk_id, input_sha256="b" * 64)
    key = f"data/part-{chunk_id:06d}.jsonl.zst"
    return PartReceipt(key=key, sha256="c" * 64, n_bytes=1, header=header, footer=footer)


@pytest.mark.parametrize("gate", GATES)
def test_the_window_stops_above_a_threshold_and_not_at_it(gate: Gate) -> None:
    for n_flagged, stops in [(10, False), (11, True)]:
        watched = watch(only(gate))
        add(watched, 1, 200 - n_flagged)
        # The end of one chunk and the beginning of the next, neither of them past it alone.
        add(watched, 1, n_flagged // 2, gate, at=200)
        add(watched, 2, n_flagged - n_flagged // 2, gate)
        verdicts = watched.judge()
        assert [verdict.gate for verdict in verdicts] == [gate] * stops
        if stops:
            assert "5.5% of 200 latest conversations of the run" in str(verdicts[0])
            assert verdicts[0].sample_ids[-1] == "p2-5#s0"


def test_what_is_older_than_the_window_counts_no_more() -> None:
    watched = watch(only("empty_answer"))
    add(watched, 1, 100, "empty_answer")
    assert watched.judge()
    add(watched, 2, 199)
    assert not watched.judge()


def test_no_window_judges_before_min_rows_nor_what_is_accepted() -> None:
    watched = watch(only("empty_answer", min_rows=50))
    add(watched, 1, 49, "empty_answer")
    assert not watched.judge()
    add(watched, 1, 1, at=49)
    assert watched.judge()
    accepted = watch(only("empty_answer", accept=("empty_answer",)))
    add(accepted, 1, 60, "empty_answer")
    assert not accepted.judge()


def test_published_parts_fill_the_window_of_a_run_that_is_taken_up() -> None:
    for n_flagged, stops in [(5, False), (6, True)]:
        watched = watch(only("tiny_mask"))
        watched.recall([publish(1, 100, tiny_mask=5), publish(0, 1000, tiny_mask=500)])
        add(watched, 2, 100 - n_flagged, replayed=True)
        add(watched, 2, n_flagged, "tiny_mask", at=100, replayed=True)
        assert bool(watched.judge()) is stops


def test_a_chunk_that_is_tried_again_counts_once() -> None:
    watched = watch(only("repetition"), budget=0.01)
    add(watched, 1, 94)
    for _ in range(2):
        watched.begin(2)
        add(watched, 2, 6, "repetition")
        for _ in range(10):
            watched.add_failed(2)
    (verdict,) = watched.judge()
    assert (verdict.n_flagged, verdict.n_judged) == (6, 100)


def test_what_is_asked_for_anew_does_not_stop_the_run_that_mends_it() -> None:
    watched = watch(only("empty_answer", redo=("empty_answer",)))
    watched.recall([publish(0, 100, empty_answer=50)])
    add(watched, 1, 50, "empty_answer", replayed=True)
    assert not watched.judge()
    add(watched, 1, 11, "empty_answer", at=50)
    assert watched.judge(), "but what comes now does"


def test_the_run_ends_above_its_failure_budget_and_not_at_it() -> None:
    watched = watch(GatesConfig(), n_conversations=1000, budget=0.03)
    watched.recall([publish(0, 500, n_failed=20)])
    for chunk_id in range(1, 11):
        watched.add_failed(chunk_id)
    with pytest.raises(RunBudgetExceeded, match="31 of the run's 1000 conversations"):
        watched.add_failed(11)


def test_what_a_retry_stands_in_for_counts_neither_as_flagged_nor_as_failed() -> None:
    part, other = publish(0, 100, n_failed=40, tiny_mask=30), publish(1, 100)
    gone = {part.key: Superseded(n_rows=70, n_failed=40, n_completed=30, gates={"tiny_mask": 30})}
    mended = publish(0, 70, n_failed=1)
    mended = mended.model_copy(
        update={
            "key": "data/retry-01-part-000000.jsonl.zst",
            "header": mended.header.model_copy(update={"retry": 1}),
        }
    )
    watched = watch(only("tiny_mask", window=1000), budget=0.02)
    watched.recall([part, mended, other], gone)
    assert not watched.judge()
    watched.begin(1)
    for _ in range(19):
        watched.add_failed(1)
    with pytest.raises(RunBudgetExceeded, match="21 of the run's 1000"):
        watched.add_failed(1)
