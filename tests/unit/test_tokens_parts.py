"""Samples that were damaged are never taken for sound ones, wherever the damage lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.tokens.assemble import assemble_part, find_samples
from tests.support.assembling import SETTINGS, answer_all, plan_questions
from tests.support.outcomes import conclude, publish_outcomes


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (b'"n_checked":6', b'"n_checked":4'),  # the receipt within the file
        (b"seq_len", b"seq_leo"),  # a column's name
        (b"token_source", b"\xffoken_source"),  # a name that is no text
    ],
)
def test_a_footer_that_changed_is_damage_too(tmp_path: Path, sound: bytes, damaged: bytes) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    arguments = (run.store, run.plan, run.plan.chunks[0], part, run.template, SETTINGS)
    receipt = assemble_part(*arguments)
    path = tmp_path / "store" / receipt.key
    data = path.read_bytes()
    assert sound in data
    path.write_bytes(data.replace(sound, damaged))
    assert find_samples(run.store, run.plan, part, SETTINGS) is None
    again = assemble_part(*arguments)
    assert again.key == receipt.key.replace(".parquet", ".r1.parquet")
    assert again.n_checked == receipt.n_checked


def test_samples_that_are_known_to_be_damaged_are_made_again_although_they_can_be_read(
    tmp_path: Path,
) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    arguments = (run.store, run.plan, run.plan.chunks[0], part, run.template, SETTINGS)
    receipt = assemble_part(*arguments)
    run.store.damaged.add(receipt.key)
    assert find_samples(run.store, run.plan, part, SETTINGS) is None
    assert assemble_part(*arguments).key == receipt.key.replace(".parquet", ".r1.parquet")
