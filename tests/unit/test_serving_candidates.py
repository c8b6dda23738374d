"""Which candidates a tuning tries: only what the rules allow, and nothing twice."""

from __future__ import annotations

from typing import Any

from tasks.environment.compat import find_conflicts
from tasks.serving.config import ServingConfig
from tasks.serving.launchable import LaunchFacts, launch_choice
from tasks.serving.trial import TrialResult
from tasks.serving.tuner import propose_candidates, rank_results, refine_candidate

CARD = LaunchFacts(capability=(12, 0), hybrid=True, nvlink=False)


def config(**changes: Any) -> ServingConfig:
    fields: dict[str, Any] = {
        "python": "/servers/bin/python",
        "mamba_strategy": "no_buffer",
        "max_running_requests": 72,
    }
    return ServingConfig.model_validate(fields | changes)


def kept(serving: ServingConfig) -> tuple[str | None, bool, bool]:
    return serving.mamba_strategy, serving.disable_radix_cache, serving.speculative is not None


def test_a_hybrid_model_is_tried_with_every_way_that_the_rules_allow() -> None:
    candidates = propose_candidates(config(), CARD)
    assert candidates[0].serving == config(), "what is configured comes first"
    assert {kept(each.serving) for each in candidates} == {
        ("no_buffer", False, False),
        ("no_buffer", True, False),
        ("no_buffer", True, True),
        ("extra_buffer", False, False),
        ("extra_buffer", False, True),
    }
    assert {each.serving.max_running_requests for each in candidates} == {36, 72, 108}
    assert len({each.serving.model_dump_json() for each in candidates}) == len(candidates) == 15
    for each in candidates:
        assert find_conflicts(launch_choice(each.serving, CARD)) == ()
    assert len({each.name for each in candidates}) == len(candidates)


def test_what_is_configured_comes_first_where_it_leaves_the_slots_to_the_server() -> None:
    unset = config(max_running_requests=None)
    candidates = propose_candidates(unset, CARD)
    assert (candidates[0].serving, candidates[0].name) == (unset, "as configured")
    assert {each.serving.max_running_requests for each in candidates[1:]} == {32, 64, 96}


def test_a_dense_model_is_not_given_mamba_flags() -> None:
    dense = LaunchFacts(capability=(12, 0), hybrid=False)
    candidates = propose_candidates(config(mamba_strategy=None), dense)
    assert {each.serving.mamba_strategy for each in candidates} == {None}
    assert {each.serving.max_running_requests for each in candidates} == {36, 72, 108}


def test_the_second_round_feeds_the_winner_otherwise() -> None:
    winner = propose_candidates(config(), CARD)[1]
    refined = refine_candidate(winner, CARD)
    assert {
        (each.serving.chunked_prefill_size, each.serving.mem_fraction_static) for each in refined
    } == {(4096, 0.9), (8192, 0.85), (8192, 0.9)}
    for each in refined:
        assert kept(each.serving) == kept(winner.serving)
        assert each.changes.items() >= winner.changes.items()


def test_the_fastest_wins_and_what_failed_comes_last() -> None:
    results = [
        TrialResult(name="slow", tokens_per_second=212),
        TrialResult(name="out of memory", error="CUDA out of memory", tokens_per_second=9999),
        TrialResult(name="retracts", tokens_per_second=1180, n_retracted=40),
        TrialResult(name="fast", tokens_per_second=1180),
    ]
    ranked = [result.name for result in rank_results(results)]
    assert ranked == ["fast", "retracts", "slow", "out of memory"]


def test_no_candidate_asks_for_more_slots_than_the_setting_takes() -> None:
    for each in propose_candidates(config(max_running_requests=4000), CARD):
        ServingConfig.model_validate(each.serving.model_dump())
