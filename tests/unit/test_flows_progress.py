"""How far a run is: sums over chunks, this run's own speed, and an end that is a band."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from flows.pages.eta import estimate_end
from flows.pages.narrate import ConsoleNarrator
from flows.pages.progress import ProgressSum, RunProgress
from flows.pages.view import describe_chunk, draw_progress, format_duration, tabulate_run
from tasks.completions.progress import Progress
from tasks.completions.roster import EndpointLoad
from tests.unit.test_completions_rolling import publish

SERVER = EndpointLoad("http://127.0.0.1:1", "admitted", 72, 70, 1234, 5)
STATE = Progress(
    chunk_id=0,
    n_conversations=100,
    n_done=0,
    n_failed=0,
    n_replayed=0,
    n_output_tokens=0,
    n_tokens_made=0,
    sum_squared_tokens=0,
    failures={},
    endpoints=(SERVER,),
    is_done=False,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_sum(told: list[RunProgress], n_total: int = 200) -> tuple[ProgressSum, Clock]:
    clock = Clock()
    return ProgressSum(n_total, 2, told.append, clock), clock


def make_state(n_done: int, tokens: int, *, n_replayed: int = 0, chunk_id: int = 0) -> Progress:
    """Say that conversations of `tokens` tokens each are done; replayed ones were made before."""
    n_made = n_done - n_replayed
    return replace(
        STATE,
        chunk_id=chunk_id,
        n_done=n_done,
        n_replayed=n_replayed,
        n_output_tokens=n_done * tokens,
        n_tokens_made=n_made * tokens,
        sum_squared_tokens=n_made * tokens**2,
    )


def test_chunks_are_added_up_and_each_counts_with_its_newest_word() -> None:
    told: list[RunProgress] = []
    total, _ = run_sum(told)
    total.take(make_state(10, 5))
    total.take(replace(make_state(20, 5, chunk_id=1), n_failed=2, failures={"deadline": 2}))
    total.take(replace(make_state(30, 5), n_failed=1, failures={"deadline": 1}))
    last = told[-1]
    assert (last.n_done, last.n_failed, last.n_output_tokens) == (50, 3, 250)
    assert last.failures == {"deadline": 3}
    assert last.n_in_flight == 70


def test_what_an_earlier_run_made_counts_as_done_and_not_as_speed() -> None:
    told: list[RunProgress] = []
    total, clock = run_sum(told)
    total.take(make_state(80, 100, n_replayed=80))
    clock.now += 10
    total.take(make_state(100, 100, n_replayed=80))
    last = told[-1]
    assert last.n_output_tokens == 10_000
    assert last.tokens_per_second == pytest.approx(200)
    assert last.eta is not None
    assert last.eta.low_seconds == last.eta.high_seconds == pytest.approx(100 * 100 / 200)


def test_speed_now_forgets_what_was_a_minute_ago() -> None:
    told: list[RunProgress] = []
    total, clock = run_sum(told, n_total=100_000)
    for second in range(1, 301):
        clock.now += 1
        n_done = 10 * min(second, 100)
        total.take(make_state(n_done, 10))
    assert told[99].tokens_per_second_now == pytest.approx(100, rel=0.05)
    assert told[-1].tokens_per_second_now == 0
    assert told[-1].tokens_per_second == pytest.approx(10_000 / 300)


def test_the_end_is_a_band_wider_for_uneven_lengths_and_for_uneven_speeds() -> None:
    def width(sum_squared: int, speeds: tuple[float, float]) -> float:
        eta = estimate_end(
            n_left=1000, n_made=100, n_tokens=10_000, sum_squared=sum_squared, speeds=speeds
        )
        assert eta is not None
        assert eta.low_seconds <= 1000 * 100 / 50 <= eta.high_seconds or speeds != (50, 50)
        return eta.high_seconds - eta.low_seconds

    even = width(100 * 100**2, (50, 50))
    assert even == pytest.approx(0)
    assert width(3 * 100 * 100**2, (50, 50)) > 100
    assert width(100 * 100**2, (40, 60)) > 100


@pytest.mark.parametrize(("n_made", "speed"), [(19, 50.0), (100, 0.0)])
def test_no_end_is_told_from_too_little(n_made: int, speed: float) -> None:
    assert (
        estimate_end(n_left=10, n_made=n_made, n_tokens=1000, sum_squared=0, speeds=(speed, speed))
        is None
    )


def test_durations_are_told_in_their_unit() -> None:
    told = [format_duration(s) for s in (5, 119, 150, 7200, 15.5 * 3600, 5 * 86_400)]
    assert told == ["5 s", "119 s", "2 min", "2.0 h", "15.5 h", "5.0 days"]


def render(view: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(view)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def see_run() -> RunProgress:
    told: list[RunProgress] = []
    total, clock = run_sum(told)
    total.take(make_state(10, 100, n_replayed=10, chunk_id=1))
    clock.now += 10
    state = replace(make_state(100, 100), n_failed=3, failures={"deadline": 3}, is_done=True)
    total.take(state)
    return told[-1]


def test_the_view_shows_counts_end_endpoints_and_failures() -> None:
    text = render(draw_progress(see_run()))
    for part in (
        "110/200 conversations, 3 failed",
        "1,000 tokens/s now",
        "9 s left",
        "10 of them from earlier runs",
        "3 deadline",
        "http://127.0.0.1:1",
        "1,234",
    ):
        assert part in text, text


def test_prefects_table_holds_run_and_endpoints() -> None:
    rows = {row["what"]: row["value"] for row in tabulate_run(see_run())}
    assert rows["conversations"] == "110 of 200"
    assert rows["ended early: deadline"] == "3"
    assert "70 in flight of 72 slots" in rows["`http://127.0.0.1:1`"]


def test_without_a_terminal_there_is_one_line_a_chunk() -> None:
    console = Console(file=io.StringIO(), width=400)
    voice = ConsoleNarrator(console)
    with voice.live():
        done = see_run()
        voice.progress(replace(done, ended_chunk=None))
        voice.progress(done)
        voice.progress(replace(done, ended_chunk=None))
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert [line.strip() for line in lines] == [describe_chunk(done)]
    assert "chunk 0 is published (1 of 2)" in lines[0]


def test_on_a_terminal_the_view_is_live_and_leaves_nothing_behind() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    voice = ConsoleNarrator(console)
    with voice.live():
        voice.progress(see_run())
        assert voice._live is not None
        assert "110/200 conversations" in render(voice._live.get_renderable())
        voice.stage("assemble", "2 parts")
        assert "conversations" not in render(voice._live.get_renderable())
    assert voice._live is None


def test_an_attempt_that_is_made_again_slows_nothing_down_and_counts_once() -> None:
    told: list[RunProgress] = []
    total, clock = run_sum(told)
    clock.now += 10
    total.take(make_state(40, 5, n_replayed=10))
    clock.now += 1
    # The chunk failed and is tried again: what it had made is in its journals now.
    total.take(make_state(41, 5, n_replayed=40))
    last = told[-1]
    assert (last.n_done, last.n_replayed) == (41, 10)
    assert last.tokens_per_second == pytest.approx((30 + 1) * 5 / 11)
    assert last.tokens_per_second_now > 0
    total.take(make_state(60, 5, n_replayed=40))
    assert told[-1].tokens_per_second == pytest.approx((30 + 20) * 5 / 11)


def test_a_part_that_a_twin_published_meanwhile_takes_nothing_of_what_was_made_here() -> None:
    told: list[RunProgress] = []
    total, clock = run_sum(told)
    clock.now += 10
    total.take(make_state(40, 5))
    total.take_part(publish(0, 100, n_failed=3, tiny_mask=7))
    last = told[-1]
    assert (last.n_done, last.n_replayed, last.n_chunks_done) == (100, 60, 1)
    assert last.tokens_per_second == pytest.approx(40 * 5 / 10)
    assert (last.flags["tiny_mask"], last.n_judged) == (7, 97)
    # Told of once more, it counts once; and another beside it adds up.
    total.take_part(publish(0, 100, n_failed=3, tiny_mask=5))
    total.take_part(publish(1, 50, tiny_mask=1))
    assert (told[-1].n_done, told[-1].flags["tiny_mask"], told[-1].n_judged) == (150, 6, 147)
