"""What servers did over time is the same however wide the bins, in whatever order it was told."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.report.quantile import Quantiles
from tasks.report.timeline import MOST_BINS, Timeline, find_stretches

NOON = 1_900_000_000.0
REQUEST = st.tuples(
    st.floats(0, 5000), st.floats(0.001, 900), st.integers(0, 10_000)
)  # begins after NOON, seconds, tokens


def tell(requests: Sequence[tuple[float, float, int]]) -> Timeline:
    timeline = Timeline()
    for begins, seconds, n_tokens in requests:
        timeline.add(NOON + begins, NOON + begins + seconds, n_tokens)
    return timeline


def sums(timeline: Timeline) -> tuple[float, float]:
    loads = list(timeline.loads())
    return sum(load.request_seconds for load in loads), sum(load.n_tokens for load in loads)


@settings(max_examples=50, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=40))
def test_every_second_and_every_token_is_somewhere(
    requests: list[tuple[float, float, int]],
) -> None:
    timeline = tell(requests)
    busy, tokens = (sum(one[place] for one in requests) for place in (1, 2))
    for _ in range(4):
        seconds, made = sums(timeline)
        assert seconds == pytest.approx(busy, abs=0.01)
        assert made == pytest.approx(tokens, abs=0.1)
        timeline.widen(4 * timeline.width)


def test_two_requests_at_once_are_two_in_flight_while_they_overlap() -> None:
    timeline = tell([(0, 10, 100), (5, 10, 50)])
    timeline.widen(1.0)
    in_flight, speeds = [], []
    for load in timeline.loads():
        in_flight += [round(load.request_seconds / load.seconds)] * round(load.seconds)
        speeds += [round(load.n_tokens / load.seconds)] * round(load.seconds)
    assert in_flight == [1] * 5 + [2] * 5 + [1] * 5
    assert speeds == [10] * 5 + [15] * 5 + [5] * 5


def test_a_week_in_any_order_takes_a_bounded_number_of_bins() -> None:
    draw = random.Random(0)
    requests = [(draw.uniform(0, 604_800), draw.uniform(1, 300), 100) for _ in range(20_000)]
    timeline, sorted_one = tell(requests), tell(sorted(requests))
    assert len(list(timeline.loads())) <= MOST_BINS
    assert sums(timeline) == pytest.approx(sums(sorted_one), rel=1e-6)


def test_a_pause_of_hours_parts_two_stretches_and_one_of_minutes_does_not() -> None:
    work = [(0, 60, 1), (300, 60, 1), (50_000, 60, 1)]
    first, second = find_stretches([tell(work[:1]), tell(work[1:])], pause_seconds=900)
    assert (first.began_at, first.ended_at) == (NOON, NOON + 360)
    assert second.seconds == 60


def test_nothing_in_flight_is_no_stretch() -> None:
    assert find_stretches([Timeline()], 900) == ()


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300))
def test_quantiles_are_those_of_the_sorted_values_within_a_percent(values: list[float]) -> None:
    sketch = Quantiles()
    for value in values:
        sketch.add(value)
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.99, 1.0):
        exact = ordered[max(0, -int(-share * len(values) // 1) - 1)]
        assert sketch.at(share) == pytest.approx(exact, rel=0.0101)


def test_no_values_have_no_quantile_and_zeros_are_values() -> None:
    assert Quantiles().at(0.5) is None
    sketch = Quantiles()
    for value in (0.0, 0.0, 8.0):
        sketch.add(value)
    assert (sketch.at(0.5), sketch.at(1.0)) == (0.0, 8.0)
