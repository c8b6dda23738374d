"""Counts that do not add up are found, whichever they are."""

from __future__ import annotations

import pytest

from tasks.report.balance import balance

COUNTS = {
    "n_source_rows": 100,
    "n_prompts": 60,
    "n_rejected": 20,
    "n_not_sampled": 15,
    "n_duplicates": 5,
    "n_conversations": 120,
    "n_completed": 100,
    "n_truncated": 10,
    "n_partial": 4,
    "n_failed": 6,
    "n_generations": 130,
    "n_samples": 125,
    "n_dropped": 5,
    "n_base_rows": 50,
    "n_dataset_rows": 170,
    "n_dropped_prompts": 5,
}


def test_sound_counts_balance() -> None:
    sums = balance(COUNTS, 120)
    assert len(sums) == 5
    assert all(each.holds for each in sums)


@pytest.mark.parametrize("name", COUNTS)
def test_one_record_lost_is_found(name: str) -> None:
    assert not all(each.holds for each in balance({**COUNTS, name: COUNTS[name] - 1}, 120))


def test_conversations_that_were_asked_and_never_held_are_found() -> None:
    assert [each.name for each in balance(COUNTS, 121) if not each.holds] == [
        "conversations = prompts x samples"
    ]


def test_counts_that_are_not_kept_are_not_held_against_anything() -> None:
    assert balance({"n_samples": 3}, 0) == []
