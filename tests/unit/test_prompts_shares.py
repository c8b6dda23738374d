"""The mix is solved for its shares, and what cannot be reached is said with the figure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.prompts.config import MixConfig
from tasks.prompts.record import MixSolution
from tasks.prompts.shares import OTHERS, solve_mix

DOMAINS = ("code", "math", "tools", "general")


def share_of(solution: MixSolution, domain: str) -> float:
    return next(share.after for share in solution.shares if share.domain == domain)


def test_902k_rows_at_77_percent_code_take_487k_rows_without_code_to_come_to_half() -> None:
    base = {"code": 694_540, "general": 207_460}
    mix = MixConfig(targets={"code": 0.5})
    field_run = {("infinity", "general"): 99_000, ("metamath", "math"): 64_000,
                 ("feedback", "code"): 29_000}  # fmt: skip
    short = solve_mix(mix, field_run, base, {})
    assert share_of(short, "code") == pytest.approx(0.652, abs=0.001)
    assert {cap.source: cap.n_taken for cap in short.caps} == {
        "infinity": 99_000, "metamath": 64_000, "feedback": 0,
    }  # fmt: skip
    assert any("takes 487,080 new rows without code" in line for line in short.unreachable)
    assert any("the sources have 163,000" in line for line in short.unreachable)
    enough = {("infinity", "general"): 400_000, ("metamath", "math"): 90_000}
    reached = solve_mix(mix, enough, base, {})
    assert share_of(reached, "code") == pytest.approx(0.5, abs=0.005)
    assert not reached.unreachable


def test_caps_are_in_proportion_to_what_each_source_has() -> None:
    available = {("a", "code"): 300, ("b", "math"): 1000, ("c", "math"): 500, ("c", "x"): 900}
    solution = solve_mix(MixConfig(targets={"code": 0.4, "math": 0.3}), available, {}, {})
    caps = {(cap.source, cap.domain): cap.n_taken for cap in solution.caps}
    assert caps == {("a", "code"): 300, ("b", "math"): 150, ("c", "math"): 75, ("c", "x"): 225}
    assert share_of(solution, OTHERS) == pytest.approx(0.3)


def test_shares_of_tokens_weigh_each_prompt_by_what_its_answer_will_be() -> None:
    available = {("a", "code"): 1000, ("b", "math"): 1000}
    mix = MixConfig(
        targets={"code": 0.5, "math": 0.5}, unit="tokens",
        expected_tokens={"code": 1000, "math": 4000},
    )  # fmt: skip
    taken = {cap.domain: cap.n_taken for cap in solve_mix(mix, available, {}, {}).caps}
    assert taken == {"code": 1000, "math": 250}
    by_base = MixConfig(targets={"code": 0.5, "math": 0.5}, unit="tokens")
    base_rows, base_tokens = {"code": 10, "math": 10}, {"code": 10_000, "math": 20_000}
    solution = solve_mix(by_base, available, base_rows, base_tokens)
    assert share_of(solution, "code") == pytest.approx(0.5, abs=0.001)


def test_a_domain_that_is_nowhere_is_named_and_does_not_empty_the_others() -> None:
    mix = MixConfig(targets={"cooking": 0.2, "code": 0.8})
    solution = solve_mix(mix, {("a", "code"): 100}, {}, {})
    assert solution.caps[0].n_taken == 100
    assert any(line.startswith("cooking: 0.0% instead of 20.0%") for line in solution.unreachable)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from(DOMAINS)), st.integers(1, 5000),
        min_size=1,
    ),
    st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 5000)),
    st.dictionaries(st.sampled_from(DOMAINS), st.floats(0, 0.25), min_size=1),
)  # fmt: skip
def test_nothing_is_taken_that_is_not_there_and_a_reached_share_is_reached(
    available: dict[tuple[str, str], int], base: dict[str, int], targets: dict[str, float]
) -> None:
    solution = solve_mix(MixConfig(targets=targets), available, base, {})
    assert all(0 <= cap.n_taken <= cap.n_available for cap in solution.caps)
    assert {(cap.source, cap.domain): cap.n_available for cap in solution.caps} == available
    n_after = sum(share.base + share.taken for share in solution.shares)
    assert sum(cap.n_taken for cap in solution.caps) == sum(s.taken for s in solution.shares)
    for share in solution.shares:
        named = any(line.startswith(f"{share.domain}:") for line in solution.unreachable)
        assert named == (abs(share.after - share.target) > 0.005)
        if n_after:
            assert share.after == pytest.approx((share.base + share.taken) / n_after)


@pytest.mark.parametrize("targets", [{}, {"code": 1.2}, {"code": 0.7, "math": 0.7}, {"code": -0.1}])
def test_shares_that_cannot_be_are_refused(targets: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        MixConfig(targets=targets)
