"""The report's figures of speed: the estimate beside what the parts tell of the run."""

from __future__ import annotations

import pytest

from flows.configuration.load import load_config
from flows.pages.speed import compare_speed, find_cost
from tasks.prompts.record import Chunk, Plan
from tasks.report.generation import GenerationCounter
from tasks.report.glance import count_gpu_hours
from tasks.report.record import CostFigures, GenerationFigures, SpeedFigure
from tasks.serving.config import ServingConfig
from tasks.serving.estimate import Workload, bound_server

PLAN = Plan(
    request_sha="0" * 64,
    model="m",
    model_revision=None,
    dtype="auto",
    quantization=None,
    tokenizer_sha256="0" * 64,
    chat_template_sha256="0" * 64,
    context_length=8192,
    max_tokens=6144,
    thinking=True,
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_coder",
    sampling={},
    n_samples=1,
    extracted=(),
    n_duplicates=0,
    chunks=(Chunk(id=0, n_prompts=100, prompts_key="prompts/0", input_sha256="0" * 64),),
)
NOON = 1_900_000_000.0
COST = CostFigures(gpus_a_server=1)


def generate(*, pause: float = 0.0, timed: bool = True) -> GenerationFigures:
    """Two servers answer 50 requests each, one after the other, a pause after the first half."""
    counter = GenerationCounter()
    for url in ("a", "b"):
        for i in range(50):
            began = NOON + 30 * i + (pause if i >= 25 else 0)
            counter.add_answer(
                url,
                prompt_tokens=300,
                output_tokens=2712,
                reasoning_tokens=0,
                latency_seconds=30.0,
                ended_at=began + 30 if timed else 0.0,
                retried=(),
            )
    return counter.freeze({"a": "0.5.12", "b": "0.5.12"}, {"a": 72, "b": 72})


@pytest.fixture
def serving() -> ServingConfig:
    return load_config("rtx-pro-6000-8x", ["store.uri=file:///unused"]).config.serving


def find(figures: tuple[SpeedFigure, ...], name: str, unit: str) -> SpeedFigure:
    [figure] = [each for each in figures if (each.name, each.unit) == (name, unit)]
    return figure


def test_each_estimate_stands_beside_its_measurement(serving: ServingConfig) -> None:
    figures = compare_speed(serving, PLAN, generate(), COST)
    speed = find(figures, "all servers", "tokens/s")
    assert speed.estimated == 9400
    assert speed.measured == pytest.approx(2 * 2712 / 30, rel=0.01)
    assert find(figures, "one server", "tokens/s").measured == pytest.approx(2712 / 30, rel=0.01)
    assert find(figures, "mean answer", "tokens").measured == 2712
    hours = find(figures, "generation", "hours")
    assert hours.measured == pytest.approx(1500 / 3600, rel=0.01)
    assert hours.estimated == pytest.approx(271_200 / 9400 / 3600, rel=0.01)
    assert find(figures, "one stream", "tokens/s").estimated == pytest.approx(33, abs=0.5)


def test_a_run_taken_up_a_day_later_cost_what_it_worked_and_not_the_night(
    serving: ServingConfig,
) -> None:
    whole, in_two = generate(), generate(pause=86_400.0)
    assert [stretch.n_servers for stretch in in_two.stretches] == [2, 2]
    cost, again = count_gpu_hours(whole, COST), count_gpu_hours(in_two, COST)
    assert cost == pytest.approx(2 * 1500 / 3600, rel=0.01)
    assert again == pytest.approx(cost, rel=0.01)


def test_a_short_pause_is_held_and_paid_for() -> None:
    assert generate(pause=600.0).seconds == pytest.approx(2100, rel=0.01)


def test_parts_that_tell_no_times_give_no_hours(serving: ServingConfig) -> None:
    figures = compare_speed(serving, PLAN, generate(timed=False), COST)
    assert find(figures, "generation", "hours").measured is None
    assert find(figures, "all servers", "tokens/s").measured is None
    assert find(figures, "mean answer", "tokens").measured == 2712


def test_hours_of_some_answers_alone_are_not_those_of_the_run(serving: ServingConfig) -> None:
    some = generate().model_copy(update={"n_timed": 60})
    figures = compare_speed(serving, PLAN, some, COST)
    for name, unit in (("generation", "hours"), ("generation", "GPU-hours")):
        assert find(figures, name, unit).measured is None
    assert find(figures, "one server", "tokens/s").measured is None


def test_without_an_outlook_only_what_was_measured_is_told(serving: ServingConfig) -> None:
    bare = serving.model_copy(update={"outlook": type(serving.outlook)()})
    figures = compare_speed(bare, PLAN, generate(), COST)
    assert {figure.estimated for figure in figures} == {None}
    assert find(figures, "all servers", "tokens/s").measured == pytest.approx(180.8, rel=0.01)


def test_the_roofline_is_that_of_the_lengths_that_were_answered(serving: ServingConfig) -> None:
    cost = find_cost(serving, generate(), simulated=False, watt_hours=1.5)
    work = Workload(n_conversations=100, prompt_tokens=300, output_tokens=2712)
    assert cost.bound_tokens_per_second == bound_server(serving, work, 72)
    assert (cost.gpus_a_server, cost.watt_hours) == (1, 1.5)


def test_simulated_servers_use_no_gpu(serving: ServingConfig) -> None:
    cost = find_cost(serving, generate(), simulated=True, watt_hours=None)
    assert count_gpu_hours(generate(), cost) is None
