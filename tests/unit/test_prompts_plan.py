"""A plan's identity: the same for the same plan, another for each that answers otherwise."""

from __future__ import annotations

import pytest

from tasks.prompts.record import Chunk, Plan
from tests.unit.test_flows_speed import PLAN


@pytest.mark.parametrize(
    "changed",
    [
        {"max_tokens": 100},
        {"sampling": {"temperature": 0.7}},
        {"chunks": (Chunk(id=0, n_prompts=99, prompts_key="prompts/0", input_sha256="0" * 64),)},
    ],
)
def test_a_changed_plan_has_another_identity(changed: dict[str, object]) -> None:
    before = PLAN.sha
    copy = PLAN.model_copy(update=changed)
    assert copy.sha != before
    # By its fields alone, however it came about.
    assert Plan.model_validate_json(copy.model_dump_json()).sha == copy.sha
    assert PLAN.model_copy(deep=True).sha == before == PLAN.sha


def test_an_identity_that_was_asked_for_is_no_field() -> None:
    fresh = Plan.model_validate_json(PLAN.model_dump_json())
    assert PLAN.sha
    assert fresh == PLAN
    assert "sha" not in PLAN.model_dump()
