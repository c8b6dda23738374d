"""Near-duplicates are those that the exact similarity says, and the first in order survives."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.prompts import near
from tasks.prompts.near import (
    N_PERMUTATIONS,
    N_WORDS,
    NearIndex,
    choose_rows,
    join_user_turns,
    measure_jaccard,
)
from tasks.prompts.shingles import WordHashes, hash_runs, list_runs, split_on_space

WORDS = [f"w{index}" for index in range(400)]


def vary(rng: random.Random, text: str) -> str:
    words = text.split()
    for _ in range(rng.randint(1, 6)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return " ".join(words)


def invent(n: int) -> list[str]:
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(8, 60)))]
    while len(texts) < n:
        fresh = " ".join(rng.choices(WORDS, k=rng.randint(8, 60)))
        texts.append(vary(rng, rng.choice(texts)) if rng.random() < 0.5 else fresh)
    return texts


def find_by_brute_force(texts: list[str], threshold: float) -> list[bool]:
    kept: list[set[tuple[str, ...]]] = []
    survives = []
    for text in texts:
        runs = list_runs(split_on_space(text), N_WORDS)
        survives.append(all(measure_jaccard(runs, other) < threshold for other in kept))
        if survives[-1]:
            kept.append(runs)
    return survives


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8])
def test_what_falls_is_what_falls_by_comparing_all_with_all(threshold: float) -> None:
    texts = invent(450)
    index = NearIndex(threshold, texts.__getitem__)
    found = index.extend(texts, threshold).tolist()
    exact = find_by_brute_force(texts, threshold)
    n_fallen = exact.count(False)
    assert n_fallen >= 20
    assert found.count(False) <= n_fallen
    missed = sum(survives and not stays for stays, survives in zip(exact, found, strict=True))
    assert missed <= max(1, n_fallen // 50), "MinHash proposes 99% of the pairs"


def test_growing_block_by_block_gives_the_same_survivors() -> None:
    texts = invent(300)
    whole = NearIndex(0.7, texts.__getitem__).extend(texts, 0.7).tolist()
    parts = NearIndex(0.7, texts.__getitem__)
    cuts = [0, 1, 90, 91, 200, 300]
    grown = [stays for a, b in pairwise(cuts) for stays in parts.extend(texts[a:b], 0.7).tolist()]
    assert grown == whole


def test_what_is_remembered_for_comparing_is_bounded_by_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = invent(200)
    whole = NearIndex(0.7, texts.__getitem__).extend(texts, 0.7).tolist()
    monkeypatch.setattr(near, "_MOST_REMEMBERED", 100)
    index = NearIndex(0.7, texts.__getitem__)
    assert index.extend(texts, 0.7).tolist() == whole
    assert 0 < sum(map(len, index._runs.values())) <= 100


def test_a_text_of_few_words_is_compared_as_a_whole() -> None:
    texts = ["Name a moss.", "name a  MOSS.", "Name a fern.", "", " ", "2+3=?", "2-3=?",
             "列出三种苔藓", "列出三种 苔藓"]  # fmt: skip
    found = NearIndex(0.8, texts.__getitem__).extend(texts, 0.8).tolist()
    assert found == [True, False, True, True, True, True, True, True, False]


def test_numbers_that_were_swapped_make_near_duplicates_only_in_long_texts() -> None:
    short = [
        "A crate holds 3 pears. How many are in 5?",
        "A crate holds 4 pears. How many are in 6?",
    ]
    assert all(NearIndex(0.8, short.__getitem__).extend(short, 0.8))


def test_only_the_users_turns_are_compared() -> None:
    system = {"role": "system", "content": "A long text that all rows of the source begin with."}
    one = join_user_turns([system, {"role": "user", "content": "Name a fern."}])
    assert one == "Name a fern."


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 1.0])
def test_bands_are_as_long_as_recall_allows(threshold: float) -> None:
    rows = choose_rows(threshold)
    bands = N_PERMUTATIONS // rows
    assert 1 - (1 - threshold**rows) ** bands >= 0.99 or rows == 1


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from(WORDS[:9]), max_size=7), min_size=1, max_size=12))
def test_equal_runs_and_only_those_have_equal_hashes(texts: list[list[str]]) -> None:
    hashes, ends = hash_runs(texts, WordHashes())
    assert ends[-1] == len(hashes)
    seen: dict[tuple[str, ...], int] = {}
    for words, (start, end) in zip(texts, pairwise(ends.astype(int).tolist()), strict=True):
        n_runs = end - start
        assert n_runs == (0 if not words else max(1, len(words) - 2))
        runs = [tuple(words[at : at + 3]) for at in range(n_runs)]
        for run, value in zip(runs, hashes[start:end].tolist(), strict=True):
            assert seen.setdefault(run, value) == value
    assert len(set(seen.values())) == len(seen)
    assert hashes.dtype == np.uint64
