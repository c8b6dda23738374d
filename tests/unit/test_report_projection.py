"""What the whole run may take: weighted by source, as a band, and plain about what it rests on."""

from __future__ import annotations

import random
import re

import pytest

from tasks.report.page import render_canary
from tasks.report.projection import Conversed, project
from tests.support.figures import make_canary, make_sample


def converse(source: str, lengths: list[int], speed: float = 50.0) -> list[Conversed]:
    return [Conversed(source, length, length / speed) for length in lengths]


def test_sources_weigh_by_their_prompts_and_not_by_their_share_of_the_canary() -> None:
    canary = converse("short", [100] * 128) + converse("long", [4000] * 128)
    found = project(canary, {"short": 90_000, "long": 10_000}, n_slots=None, n_gpus=None)
    assert found is not None
    assert found.output_tokens.middle == pytest.approx(90_000 * 100 + 10_000 * 4000)
    assert found.hours is None, "without servers no hours are told"


def test_the_band_holds_the_truth_and_narrows_with_the_canary() -> None:
    luck = random.Random(7)
    lengths = [int(luck.lognormvariate(7, 0.8)) for _ in range(20_000)]
    truth, widths = sum(lengths), []
    for n_seen in (64, 512):
        bands = []
        for _ in range(40):
            canary = converse("a", luck.sample(lengths, n_seen))
            found = project(canary, {"a": len(lengths)}, n_slots=576, n_gpus=8)
            assert found is not None
            bands.append(found.output_tokens)
        # Two standard errors: 19 times in 20.
        assert sum(band.low < truth < band.high for band in bands) >= 34
        widths.append(sum(band.high - band.low for band in bands))
    assert widths[1] < widths[0] / 2


def test_hours_lie_between_the_canary_alone_and_every_slot_as_fast_as_there() -> None:
    # 100 requests of 500 tokens, 10 seconds each: 5,000 tokens/s together, 28,800 with 576 slots.
    found = project(converse("a", [500] * 100), {"a": 100_000}, n_slots=576, n_gpus=8)
    assert found is not None
    assert found.hours is not None
    assert found.gpu_hours is not None
    n_tokens = 100_000 * 500
    assert found.hours.low == pytest.approx(n_tokens / 28_800 / 3600)
    assert found.hours.high == pytest.approx(n_tokens / 2_500 / 3600)
    assert found.hours.low < found.hours.middle < found.hours.high
    assert found.gpu_hours.low == pytest.approx(8 * found.hours.low)
    assert "100 conversations of the canary" in found.basis
    assert "576 slots" in found.basis


def test_a_source_that_the_canary_lacks_is_taken_for_like_the_others() -> None:
    found = project(converse("a", [200] * 50), {"a": 100, "b": 100}, n_slots=8, n_gpus=None)
    assert found is not None
    assert found.output_tokens.middle == pytest.approx(200 * 200)
    assert found.gpu_hours is None, "whose GPUs these are is not known"


def test_too_few_answers_say_nothing() -> None:
    assert project([], {"a": 100}, n_slots=8, n_gpus=8) is None
    assert project(converse("a", [10]), {"a": 100}, n_slots=8, n_gpus=8) is None
    assert project(converse("a", [0, 0]), {"a": 100}, n_slots=8, n_gpus=8) is None


def test_the_page_shows_the_bands_and_twenty_conversations_a_source_with_all_their_turns() -> None:
    samples = tuple(
        make_sample(f"answer {n} turn {turn}", id=f"{n:032x}#s0#g{turn}", source="invented")
        for n in range(25)
        for turn in range(2)
    )
    figures = make_canary(
        samples=samples,
        projection=project(
            converse("invented", [500] * 100), {"invented": 100_000}, n_slots=576, n_gpus=8
        ),
    )
    html = render_canary(figures)
    for text in ("GPU-hours", "50.0 million", "at least", "at most", "576 slots"):
        assert text in html
    assert html.count('<mark class="one">') == 40
    assert "answer 19 turn 1" in html
    assert "answer 20 turn 0" not in html
    # What is supervised is not told by colour alone.
    assert re.search(r"\.tokens \.one \{[^}]*border-bottom: 2px solid", html)
    assert "mask 1</span>sampled by the target, supervised" in html
    assert '<th scope="row">hours</th>' in html
