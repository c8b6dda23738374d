"""Tallies add up, whatever the order of rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tasks.report.composition import (
    LENGTH_EDGES,
    Composition,
    CompositionCounter,
    bin_length,
    share,
)

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["code", "maths", "general"]),
        st.sampled_from(["alpha", "beta"]),
        st.integers(1, 50_000),
        st.integers(0, 50_000),
    )
)


def count(rows: list[tuple[str, str, int, int]]) -> Composition:
    counter = CompositionCounter()
    for row in rows:
        counter.add(*row)
    return counter.freeze()


@given(ROWS, ROWS)
def test_the_sum_of_two_is_the_composition_of_all_their_rows(
    a: list[tuple[str, str, int, int]], b: list[tuple[str, str, int, int]]
) -> None:
    assert Composition.sum([count(a), count(b)]) == count(b + a)


@given(ROWS)
def test_domains_sources_and_lengths_each_sum_to_the_total(
    rows: list[tuple[str, str, int, int]],
) -> None:
    composition = count(rows)
    total = composition.total
    assert total.n_rows == len(rows) == sum(composition.lengths)
    assert total.n_tokens == sum(row[2] for row in rows)
    assert total.n_supervised_tokens == sum(row[3] for row in rows)
    assert sum(tally.n_rows for tally in composition.by_source.values()) == len(rows)


@given(ROWS)
def test_a_composition_survives_its_json(rows: list[tuple[str, str, int, int]]) -> None:
    composition = count(rows)
    assert Composition.model_validate_json(composition.model_dump_json()) == composition


def test_bins_take_their_upper_edge() -> None:
    for index, edge in enumerate(LENGTH_EDGES):
        assert bin_length(edge) == index
        assert bin_length(edge + 1) == index + 1


def test_a_share_of_nothing_is_zero() -> None:
    assert share(3, 4) == 0.75
    assert share(0, 0) == 0.0
