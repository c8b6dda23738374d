"""The order mixes sources, the canary draws on all of them, duplicates keep their first source."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.prompts.dedupe import SeenPrompts, merge_sources
from tasks.prompts.mix import order_key, share_canary


def make_id(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()[:32]


def stream(numbers: set[int], seed: int) -> list[tuple[str, int]]:
    ids = {make_id(number): number for number in numbers}
    return sorted(ids.items(), key=lambda item: order_key(seed, item[0]))


@pytest.mark.parametrize(
    ("n_prompts", "size", "shares"),
    [
        ([900, 90, 10], 100, [90, 9, 1]),
        ([9990, 9, 1], 100, [98, 1, 1]),
        ([5, 5, 5], 256, [5, 5, 5]),
        ([10, 0, 10], 5, [3, 0, 2]),
        ([7, 7, 7], 2, [1, 1, 0]),
        ([0, 0], 10, [0, 0]),
    ],
)
def test_the_canary_is_shared_in_proportion_with_one_each_at_least(
    n_prompts: list[int], size: int, shares: list[int]
) -> None:
    assert share_canary(n_prompts, size) == shares


@given(st.lists(st.integers(0, 500), min_size=1, max_size=8), st.integers(1, 300))
def test_canary_shares_sum_to_its_size_and_leave_no_source_out(
    n_prompts: list[int], size: int
) -> None:
    shares = share_canary(n_prompts, size)
    assert sum(shares) == min(size, sum(n_prompts))
    assert all(0 <= share <= n for share, n in zip(shares, n_prompts, strict=True))
    n_sources = sum(n > 0 for n in n_prompts)
    if size >= n_sources:
        assert all(share > 0 for share, n in zip(shares, n_prompts, strict=True) if n)


@given(st.lists(st.sets(st.integers(0, 60)), min_size=1, max_size=4), st.integers(0, 3))
def test_of_equal_prompts_the_first_sources_survives(sources: list[set[int]], seed: int) -> None:
    merged = list(merge_sources([stream(numbers, seed) for numbers in sources], seed))
    survivors = {number: index for index, _, number, survives in merged if survives}
    assert len(merged) == sum(len(numbers) for numbers in sources)
    assert sum(entry[3] for entry in merged) == len(survivors) == len(set().union(*sources))
    for number, index in survivors.items():
        assert index == min(i for i, numbers in enumerate(sources) if number in numbers)


def test_the_order_mixes_sources_and_changes_with_the_seed() -> None:
    streams = {seed: [stream(set(range(50)), seed), stream(set(range(50, 100)), seed)]
               for seed in (0, 1)}  # fmt: skip
    orders = {seed: [entry[2] for entry in merge_sources(s, seed)] for seed, s in streams.items()}
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(100))
    assert 10 < sum(number < 50 for number in orders[0][:50]) < 40


def test_an_id_is_new_once() -> None:
    seen = SeenPrompts()
    assert [seen.add(make_id(number)) for number in (1, 2, 1, 2, 3)] == [
        True, True, False, False, True,
    ]  # fmt: skip
