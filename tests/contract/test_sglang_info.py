"""What a server says of itself, and how it is controlled.

The expectations are written down from recorded answers of sglang 0.5.12 and 0.5.23.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.target import Target, start_generation


def test_health_routes_answer_200_with_an_empty_body(target: Target) -> None:
    assert target.get("/health") == (200, "")
    assert target.get("/health_generate") == (200, "")


def test_model_info_has_the_same_body_under_both_names(target: Target) -> None:
    status, info = target.get("/model_info")
    assert (status, info) == target.get("/get_model_info")
    expected = {
        "model_path": str,
        "tokenizer_path": str,
        "is_generation": bool,
        "preferred_sampling_params": type(None),
        "weight_version": str,
        "has_image_understanding": bool,
        "has_audio_understanding": bool,
        "model_type": str,
        "architectures": list,
    }
    assert {key: type(info[key]) for key in expected} == expected
    assert ("served_model_name" in info) == (not target.is_old)
    assert ("reasoning_parser" in info) == (not target.is_old)


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_tells_capacity_version_and_parsers(target: Target, path: str) -> None:
    status, info = target.get(path)
    assert status == 200
    assert isinstance(info["max_total_num_tokens"], int)
    assert info["version"] == target.version
    assert info["status"] == "ready"
    assert (info["reasoning_parser"], info["tool_call_parser"]) == ("qwen3", "qwen3_coder")
    [state] = info["internal_states"]
    # Null unless --max-running-requests was given: the number in force has a name of its own.
    assert state["max_running_requests"] == info["max_running_requests"]
    assert isinstance(state["effective_max_running_requests_per_dp"], int)


def test_models_lists_one_model_with_its_context_length(target: Target) -> None:
    status, body = target.get("/v1/models")
    assert status == 200
    assert body["object"] == "list"
    [model] = body["data"]
    assert set(model) == {
        "id", "object", "created", "owned_by", "root", "parent", "max_model_len",
    }  # fmt: skip
    assert (model["object"], model["owned_by"], model["parent"]) == ("model", "sglang", None)


def test_metrics_are_prometheus_text_under_sglangs_names(target: Target) -> None:
    status, text = target.get("/metrics")
    assert status == 200
    for name in ("num_running_reqs", "num_queue_reqs", "max_total_num_tokens", "gen_throughput"):
        assert f"# TYPE sglang:{name} gauge" in text
        assert f"\nsglang:{name}{{" in text


def test_load_is_told_by_the_route_of_the_version(target: Target) -> None:
    old, new = target.get("/get_load"), target.get("/v1/loads")
    if target.is_old:
        assert old[0] == 200
        assert set(old[1][0]) >= {"num_reqs", "num_waiting_reqs", "num_tokens"}
        assert new == (500, "Internal Server Error")
    else:
        assert old == (404, {"detail": "Not Found"})
        assert new[0] == 200
        assert new[1]["version"] == target.version
        assert set(new[1]["loads"][0]) >= {"num_running_reqs", "num_waiting_reqs"}


def test_unknown_paths_are_404_and_wrong_methods_405(target: Target) -> None:
    assert target.get("/nope") == (404, {"detail": "Not Found"})
    assert target.get("/v1/chat/completions") == (405, {"detail": "Method Not Allowed"})


def test_tokenize_counts_the_ids_of_a_text(target: Target) -> None:
    status, body = target.post("/tokenize", {"model": "m", "prompt": "The quick"})
    assert status == 200
    assert set(body) == {"tokens", "count", "max_model_len"}
    assert body["count"] == len(body["tokens"]) > 0


@pytest.mark.parametrize("body", [{"rid": "kill-me"}, {"abort_all": True}])
def test_an_aborted_request_is_a_200_with_partial_text(
    target: Target, body: dict[str, Any]
) -> None:
    answers: list[tuple[int, Any]] = []
    thread = start_generation(target, "kill-me", answers)
    time.sleep(0.2)  # so that there is a part to return
    assert target.post("/abort_request", body) == (200, "")
    thread.join(timeout=30)
    [(status, answer)] = answers
    assert status == 200
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert 0 < answer["usage"]["completion_tokens"] < 900


def test_the_cache_is_flushed_only_when_idle(target: Target) -> None:
    answers: list[Any] = []
    thread = start_generation(target, "busy-1", answers)
    assert target.post("/flush_cache") == (400, "Flush cache failed.\n")
    target.post("/abort_request", {"rid": "busy-1"})
    thread.join(timeout=30)
    status, text = target.post("/flush_cache")
    assert status == 200
    assert text.startswith("Cache flushed.")
