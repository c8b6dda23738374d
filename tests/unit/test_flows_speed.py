"""The report's figures of speed: the estimate beside what the run did."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from flows.config import ExpansionConfig
from flows.load import load_config
from flows.progress import RunProgress
from flows.speed import compare_speed, generated
from tasks.prompts.record import Chunk, Plan
from tasks.report.record import SpeedFigure

DONE = RunProgress(
    n_done=100,
    n_total=100,
    n_failed=0,
    n_replayed=0,
    n_output_tokens=271_200,
    n_in_flight=0,
    seconds=30.0,
    tokens_per_second=9040.0,
    tokens_per_second_now=0.0,
    failures={},
    endpoints=(),
    eta=None,
    n_chunks_done=1,
    n_chunks=1,
)
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
COUNTS = {"n_output_tokens": 271_200, "n_generations": 100}


@pytest.fixture
def config() -> ExpansionConfig:
    return load_config("rtx-pro-6000-8x", ["store.uri=file:///unused"]).config


@pytest.fixture(autouse=True)
def nothing_generated() -> Iterator[None]:
    token = generated.set(None)
    yield
    generated.reset(token)


def find(figures: tuple[SpeedFigure, ...], name: str, unit: str) -> SpeedFigure:
    [figure] = [each for each in figures if (each.name, each.unit) == (name, unit)]
    return figure


def test_each_estimate_stands_beside_its_measurement(config: ExpansionConfig) -> None:
    generated.set(DONE)
    figures = compare_speed(config, PLAN, COUNTS, 8)
    speed = find(figures, "all servers", "tokens/s")
    assert (speed.estimated, speed.measured) == (9400, 9040)
    assert find(figures, "one server", "tokens/s").measured == pytest.approx(1130)
    assert find(figures, "mean answer", "tokens").measured == pytest.approx(2712)
    hours = find(figures, "generation", "hours")
    assert hours.measured == pytest.approx(30 / 3600)
    assert hours.estimated == pytest.approx(271_200 / 9400 / 3600)
    stream = find(figures, "one stream alone, bound", "tokens/s")
    assert stream.estimated == pytest.approx(33, abs=0.5)


def test_a_resumed_runs_hours_are_not_told_by_its_last_process(config: ExpansionConfig) -> None:
    generated.set(replace(DONE, n_replayed=40))
    hours = find(compare_speed(config, PLAN, COUNTS, 8), "generation", "hours")
    assert hours.measured is None


def test_without_an_outlook_only_what_was_measured_is_told(config: ExpansionConfig) -> None:
    serving = config.serving.model_copy(update={"outlook": type(config.serving.outlook)()})
    generated.set(DONE)
    bare = config.model_copy(update={"serving": serving})
    figures = compare_speed(bare, PLAN, COUNTS, 8)
    assert {figure.estimated for figure in figures} == {None}
    assert find(figures, "all servers", "tokens/s").measured == 9040
