"""What generating routes answer.

The expectations are written down from recorded answers of sglang 0.5.12 and 0.5.23.
"""

from __future__ import annotations

from typing import Any

import orjson

from tests.contract.target import Target

THINK_END = "</think>"

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
COMPLETION_KEYS = {"id", "object", "created", "model", "choices", "usage", "metadata"}
USAGE_KEYS = {
    "prompt_tokens",
    "total_tokens",
    "completion_tokens",
    "prompt_tokens_details",
    "reasoning_tokens",
}


def test_a_chat_completion_cut_inside_thinking_has_reasoning_and_no_content(
    target: Target,
) -> None:
    status, body = target.chat(max_tokens=8, ignore_eos=True, logit_bias=target.never(THINK_END))
    assert status == 200
    assert set(body) == COMPLETION_KEYS
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "matched_stop"}
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", None)
    message = choice["message"]
    if target.is_old:
        assert set(message) == {"role", "content", "reasoning_content", "tool_calls"}
        assert (message["content"], message["tool_calls"]) == (None, None)
    else:
        assert set(message) == {"role", "content", "reasoning_content"}
        assert message["content"] == ""
    assert message["reasoning_content"]


def test_usage_counts_reasoning_at_the_top_level(target: Target) -> None:
    _, body = target.chat(max_tokens=8, ignore_eos=True, logit_bias=target.never(THINK_END))
    usage = body["usage"]
    assert set(usage) == USAGE_KEYS | (set() if target.is_old else {"completion_tokens_details"})
    assert usage["completion_tokens"] == usage["reasoning_tokens"] == 8
    assert usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert body["metadata"]["weight_version"] == "default"
    if not target.is_old:
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 8}
        spans = [{"version": "default", "start": 0, "end": 8}]
        assert body["metadata"]["weight_versions"] == spans


def test_without_thinking_nothing_counts_as_reasoning(target: Target) -> None:
    kwargs = {"enable_thinking": False}
    _, body = target.chat(max_tokens=8, ignore_eos=True, chat_template_kwargs=kwargs)
    assert body["usage"]["reasoning_tokens"] == 0
    assert body["choices"][0]["message"]["reasoning_content"] is None
    assert body["choices"][0]["message"]["content"]


def test_two_samples_give_two_choices(target: Target) -> None:
    never = target.never(THINK_END)
    _, body = target.chat(max_tokens=8, ignore_eos=True, n=2, logit_bias=never)
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 16
    assert body["usage"]["reasoning_tokens"] == (0 if target.is_old else 16)


def test_a_wrong_model_name_is_answered_and_echoed(target: Target) -> None:
    status, body = target.chat(model="no-such-model", max_tokens=3)
    assert (status, body["model"]) == (200, "no-such-model")


def test_unknown_fields_are_ignored(target: Target) -> None:
    assert target.chat(max_tokens=3, bogus_field=1)[0] == 200


def test_a_request_id_is_accepted_and_echoed(target: Target) -> None:
    assert target.chat(max_tokens=3, rid="my-rid-1")[1]["id"] == "my-rid-1"


def test_max_completion_tokens_limits_the_answer_too(target: Target) -> None:
    _, body = target.chat(max_completion_tokens=5, ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 5


def test_zero_tokens_are_a_200_cut_by_length(target: Target) -> None:
    status, body = target.chat(max_tokens=0)
    assert status == 200
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0


def test_a_stop_string_ends_the_answer_and_is_left_out(target: Target) -> None:
    _, body = target.chat(max_tokens=256, stop=["e"])
    [choice] = body["choices"]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "e")
    assert "e" not in (choice["message"]["reasoning_content"] or "")


def test_return_token_ids_gives_ids_from_0_5_23_on(target: Target) -> None:
    status, body = target.chat(max_tokens=8, ignore_eos=True, return_token_ids=True)
    assert status == 200
    [choice] = body["choices"]
    if target.is_old:
        assert not {"prompt_token_ids", "response_token_ids"} & set(choice)
    else:
        assert len(choice["prompt_token_ids"]) == body["usage"]["prompt_tokens"]
        assert len(choice["response_token_ids"]) == 8


def test_generate_takes_ids_and_returns_ids(target: Target) -> None:
    body = {"input_ids": [50, 60, 70], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    body["sampling_params"]["ignore_eos"] = True  # type: ignore[index]
    status, answer = target.post("/generate", body)
    assert status == 200
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert len(answer["output_ids"]) == 4
    meta = answer["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 4)
    expected = {"id", "weight_version", "cached_tokens", "e2e_latency", "reasoning_tokens"}
    assert set(meta) >= expected
    assert ("weight_versions" in meta) == (not target.is_old)


def test_generate_takes_text_too(target: Target) -> None:
    body = {"text": "The quick", "sampling_params": {"max_new_tokens": 6, "ignore_eos": True}}
    status, answer = target.post("/generate", body)
    assert (status, len(answer["output_ids"])) == (200, 6)


def test_generate_gives_logprobs_when_asked(target: Target) -> None:
    sampling = {"max_new_tokens": 4, "ignore_eos": True}
    body = {"input_ids": [50, 60], "sampling_params": sampling, "return_logprob": True}
    _, answer = target.post("/generate", body)
    rows = answer["meta_info"]["output_token_logprobs"]
    assert [row[1] for row in rows] == answer["output_ids"]
    assert all(row[0] < 0 and row[2] is None for row in rows)


def test_chat_gives_logprobs_when_asked(target: Target) -> None:
    _, body = target.chat(max_tokens=4, ignore_eos=True, logprobs=True, top_logprobs=2)
    rows = body["choices"][0]["logprobs"]["content"]
    assert len(rows) == 4
    assert set(rows[0]) == {"token", "bytes", "logprob", "top_logprobs"}
    assert len(rows[0]["top_logprobs"]) == 2


def test_text_completions_answer(target: Target) -> None:
    body = {"model": "m", "prompt": "The quick", "max_tokens": 6, "ignore_eos": True}
    status, answer = target.post("/v1/completions", body)
    assert (status, answer["object"]) == (200, "text_completion")
    [choice] = answer["choices"]
    assert set(choice) == {"index", "text", "logprobs", "finish_reason", "matched_stop"}


def test_tools_are_listed_in_the_prompt_as_the_servers_own_records(target: Target) -> None:
    """The server's record of a tool has fields that the client did not send, as null."""
    _, plain = target.chat(max_tokens=1)
    _, short = target.chat(max_tokens=1, tools=[TOOL])
    function = {"description": None, **TOOL["function"]}
    written_out = [{"type": "function", "function": function, "defer_loading": None}]
    _, full = target.chat(max_tokens=1, tools=written_out)
    assert plain["usage"]["prompt_tokens"] < short["usage"]["prompt_tokens"]
    assert short["usage"]["prompt_tokens"] == full["usage"]["prompt_tokens"]


def test_an_answer_to_tools_is_text_or_parsed_calls(target: Target) -> None:
    for number in range(12):
        messages = [{"role": "user", "content": f"Weather in town {number}?"}]
        _, body = target.chat(messages=messages, tools=[TOOL], max_tokens=256)
        [choice] = body["choices"]
        calls = choice["message"].get("tool_calls")
        assert (choice["finish_reason"] == "tool_calls") <= bool(calls)
        for call in calls or []:
            assert set(call) == {"id", "index", "type", "function"}
            assert call["type"] == "function"
            assert isinstance(orjson.loads(call["function"]["arguments"]), dict)
