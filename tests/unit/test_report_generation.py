"""What generating took is counted answer by answer, whatever their order."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tasks.report.generation import N_STEPS, GenerationCounter
from tasks.report.record import GenerationFigures

NOON = 1_900_000_000.0


def count(answers: list[dict[str, Any]], slots: dict[str, int]) -> GenerationFigures:
    counter = GenerationCounter()
    for answer in answers:
        plain = {
            "prompt_tokens": 10,
            "output_tokens": 100,
            "reasoning_tokens": 30,
            "latency_seconds": 10.0,
            "retried": (),
        }
        counter.add_answer(**{**plain, **answer})
    return counter.freeze(dict.fromkeys(("a", "b"), "0.5.12"), slots)


def back_to_back(endpoint: str, n_at_once: int, seconds: int = 600) -> list[dict[str, Any]]:
    """Keep `n_at_once` requests of ten seconds in flight."""
    return [
        {"endpoint": endpoint, "ended_at": NOON + at}
        for at in range(10, seconds + 1, 10)
        for _ in range(n_at_once)
    ]


def test_occupancy_is_the_share_of_slots_in_use_by_server_and_in_all() -> None:
    figures = count([*back_to_back("a", 4), *back_to_back("b", 1)], {"a": 4, "b": 4})
    occupancy = {server.base_url: server.occupancy for server in figures.endpoints}
    assert occupancy == {"a": pytest.approx(1.0), "b": pytest.approx(0.25)}
    assert figures.occupancy == pytest.approx(5 / 8)
    assert figures.seconds == pytest.approx(600)
    assert figures.server_seconds == pytest.approx(1200)


def test_slots_that_are_not_known_make_occupancy_unknown() -> None:
    figures = count([*back_to_back("a", 4), *back_to_back("b", 1)], {"a": 4})
    assert figures.occupancy is None
    assert figures.endpoints[0].occupancy == pytest.approx(1.0)


def test_speeds_over_time_add_up_to_the_tokens_whatever_the_order() -> None:
    answers = [*back_to_back("a", 4), *back_to_back("b", 1, seconds=300)]
    random.Random(0).shuffle(answers)
    figures = count(answers, {"a": 4, "b": 4})
    by_url = {server.base_url: server for server in figures.endpoints}
    for server in by_url.values():
        assert len(server.tokens_per_second) == N_STEPS
        made = sum(server.tokens_per_second) * figures.step_seconds
        assert made == pytest.approx(server.n_output_tokens, rel=1e-6)
    assert by_url["a"].tokens_per_second[0] == pytest.approx(40)
    assert by_url["b"].tokens_per_second[-1] == 0
    assert figures.in_flight[0] == pytest.approx(5)
    assert figures.in_flight[-1] == pytest.approx(4)


def test_a_pause_overnight_is_left_out_of_the_time_axis() -> None:
    again = [{**one, "ended_at": one["ended_at"] + 50_000} for one in back_to_back("a", 4)]
    figures = count([*back_to_back("a", 4), *again], {"a": 4, "b": 4})
    assert [round(stretch.seconds) for stretch in figures.stretches] == [600, 600]
    assert min(figures.in_flight) == pytest.approx(4)
    assert figures.occupancy == pytest.approx(1.0)


def test_answers_of_parts_that_tell_no_time_are_counted_without_it() -> None:
    figures = count([{"endpoint": "a", "ended_at": 0.0}] * 3, {"a": 4})
    assert (figures.n_answers, figures.n_timed, figures.stretches) == (3, 0, ())
    assert figures.latency is not None
    assert figures.latency.p50 == pytest.approx(10, rel=0.01)


def test_retries_are_told_by_cause_and_answers_by_length() -> None:
    timed: dict[str, Any] = {"endpoint": "a", "ended_at": NOON}
    figures = count(
        [
            {**timed, "retried": ["server_error", "deadline"]},
            {**timed, "retried": ["server_error"], "output_tokens": 300},
            timed,
        ],
        {},
    )
    assert figures.retries == {"deadline": 1, "server_error": 2}
    assert figures.n_retried == 2
    assert figures.answer_lengths[:3] == (2, 0, 1)


def test_of_each_kind_of_failure_the_first_few_are_kept() -> None:
    counter = GenerationCounter()
    for i in range(1000):
        counter.add_failure(f"c{i}", "deadline" if i % 2 else "aborted", "HTTP", 5)
    kept = counter.freeze({}, {}).examples
    assert [one.conversation for one in kept] == [f"c{i}" for i in (0, 2, 4, 6, 1, 3, 5, 7)]
