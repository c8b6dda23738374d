"""/metrics read, and progress told from standing still."""

from __future__ import annotations

import pytest

from tasks.serving.metrics import ServerLoad, StallWatch, read_load

LABELS = 'engine_type="unified",model_name="m",tp_rank="0"'
TEXT = f"""\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{{{LABELS}}} 5.0
sglang:num_queue_reqs{{{LABELS}}} 2.0
sglang:token_usage{{{LABELS}}} 0.25
sglang:fwd_occupancy{{{LABELS}}} NaN
sglang:realtime_tokens_total{{{LABELS},mode="prefill_compute"}} 400.0
sglang:realtime_tokens_total{{{LABELS},mode="decode"}} 1692.0
sglang:generation_tokens_total{{{LABELS}}} 1.5e3
sglang:num_retracted_requests_total{{{LABELS}}} 3.0
sglang:http_requests_active{{endpoint="/generate",method="POST"}} 4.0
sglang:http_requests_active{{endpoint="/v1/chat/completions",method="POST"}} 1.0
sglang:http_requests_active{{endpoint="/metrics",method="GET"}} 1.0
"""


def test_a_reading_counts_tokens_of_running_requests_and_what_http_holds() -> None:
    load = read_load(TEXT)
    assert load == ServerLoad(
        n_decoded=1692,
        n_progress=1692 + 400 + 1500,
        n_in_flight=5,
        n_running=5,
        n_queued=2,
        token_usage=0.25,
        n_retracted=3,
    )


def test_without_http_counts_the_scheduler_tells_what_is_in_flight() -> None:
    text = "".join(line + "\n" for line in TEXT.splitlines() if "http_requests" not in line)
    load = read_load(text)
    assert load is not None
    assert load.n_in_flight == 7


@pytest.mark.parametrize("text", ["", "404", "process_cpu_seconds_total 3.0\n"])
def test_what_is_no_sglang_server_with_metrics_gives_no_reading(text: str) -> None:
    assert read_load(text) is None


def reading(n_progress: float, n_in_flight: int) -> ServerLoad:
    return ServerLoad(0, n_progress, n_in_flight, 0, 0, 0, 0)


def test_a_server_that_computes_nothing_under_load_for_long_has_stalled() -> None:
    watch = StallWatch(10)
    assert not watch.note(reading(100, 3), 0)
    assert not watch.note(reading(100, 3), 9)
    assert watch.note(reading(100, 2), 10)


def test_any_progress_starts_the_clock_anew() -> None:
    watch = StallWatch(10)
    for now in range(0, 60, 9):
        assert not watch.note(reading(now, 1), now)
    assert not watch.note(reading(54, 1), 63)
    assert watch.note(reading(54, 1), 64)


def test_an_idle_server_never_stalls_and_its_first_request_has_all_the_time() -> None:
    watch = StallWatch(10)
    assert not any(watch.note(reading(5, 0), now) for now in range(100))
    assert not watch.note(reading(5, 1), 100)
    assert not watch.note(reading(5, 1), 109)
    assert watch.note(reading(5, 1), 110)
