"""Requests and answers of both routes, as bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tasks.completions.wire import (
    AnswerAborted,
    GenerationParams,
    MalformedAnswer,
    TurnRequest,
    encode_chat,
    encode_native,
    read_chat,
    read_native,
)

SAMPLING = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": 0.3,
    "repetition_penalty": 1.1,
}
PARAMS = GenerationParams(
    SAMPLING, thinking=True, reasoning_parser="qwen3", tool_call_parser="qwen3_coder"
)
TOOLS = '[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]'


def make_request(**changes: Any) -> TurnRequest:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": None,
        "prompt_token_ids": msgspec.Raw(b"[5,6,7]"),
        "n_prompt_tokens": 3,
        "max_tokens": 40,
        "chat_max_tokens": 30,
    }
    return TurnRequest(**{**fields, **changes})


def chat_answer(**changes: Any) -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
        "finish_reason": "stop",
        "matched_stop": 2,
        "prompt_token_ids": [1, 2, 3],
        "response_token_ids": [4, 5],
    }
    choice.update(changes)
    choice = {key: value for key, value in choice.items() if value is not ...}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "reasoning_tokens": 1}
    return json.dumps({"id": "r", "choices": [choice], "usage": usage}).encode()


def native_answer(**changes: Any) -> bytes:
    meta = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "reasoning_tokens": 0,
    }
    body = {"text": "hm</think>\n\nyes", "output_ids": [4, 5], "meta_info": meta}
    meta.update({key: value for key, value in changes.items() if key in meta})
    body.update({key: value for key, value in changes.items() if key not in meta})
    return json.dumps(body).encode()


def test_a_chat_request_says_every_sampling_parameter_and_asks_for_ids() -> None:
    body = json.loads(encode_chat(PARAMS, make_request(tools=TOOLS), rid="x", model="m"))
    assert {name: body[name] for name in SAMPLING} == SAMPLING
    assert body["max_tokens"] == 30
    assert body["rid"] == "x"
    assert body["model"] == "m"
    assert body["return_token_ids"] is True
    assert body["stream"] is False
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    assert body["tools"] == json.loads(TOOLS)
    assert "tools" not in json.loads(encode_chat(PARAMS, make_request(), rid="x", model="m"))


def test_tool_arguments_go_out_as_json_text() -> None:
    function = {"name": "f", "arguments": {"city": "Oslo"}}
    call = {"id": "c", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    body = json.loads(encode_chat(PARAMS, make_request(messages=[message]), rid="x", model="m"))
    sent = body["messages"][0]["tool_calls"][0]["function"]
    assert json.loads(sent["arguments"]) == {"city": "Oslo"}
    assert function["arguments"] == {"city": "Oslo"}, "the history itself is left as it is"


def test_a_native_request_sends_our_ids_and_keeps_special_tokens_in_the_text() -> None:
    body = json.loads(encode_native(PARAMS, make_request(), rid="x", model="m"))
    assert body["input_ids"] == [5, 6, 7]
    sampling = body["sampling_params"]
    assert {name: sampling[name] for name in SAMPLING} == SAMPLING
    assert sampling["max_new_tokens"] == 40
    assert sampling["skip_special_tokens"] is False
    assert sampling["spaces_between_special_tokens"] is False
    assert body["rid"] == "x"


def test_a_chat_answer_is_read_with_its_ids_unparsed() -> None:
    answer = read_chat(chat_answer())
    assert (answer.content, answer.reasoning, answer.tool_calls) == ("yes", "hm", [])
    assert bytes(answer.prompt_token_ids) == b"[1, 2, 3]"
    assert bytes(answer.output_token_ids) == b"[4, 5]"
    assert (answer.token_source, answer.finish_reason) == ("chat", "stop")
    assert answer.usage.reasoning_tokens == 1


def test_ids_are_found_under_their_later_name_too() -> None:
    answer = read_chat(chat_answer(response_token_ids=..., token_ids=[8, 9]))
    assert bytes(answer.output_token_ids) == b"[8, 9]"


@pytest.mark.parametrize("message", [{"content": None}, {"content": "", "tool_calls": None}])
def test_absent_parts_are_empty_whatever_the_version(message: dict[str, Any]) -> None:
    answer = read_chat(chat_answer(message=message))
    assert (answer.content, answer.reasoning, answer.tool_calls) == ("", "", [])


def test_tool_calls_come_back_with_arguments_as_a_dict() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    message = {"content": "", "tool_calls": [{"id": "c", "index": 0, "function": function}]}
    answer = read_chat(chat_answer(message=message, finish_reason="tool_calls"))
    assert answer.tool_calls == [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"response_token_ids": ...},
        {"response_token_ids": []},
        {"response_token_ids": None},
        {"prompt_token_ids": ...},
        {"finish_reason": "who knows"},
        {"message": {"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}},
    ],
)
def test_a_chat_answer_without_exact_ids_or_sense_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        read_chat(chat_answer(**changes))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"choices": 3}', b"<html>"])
def test_other_bytes_are_no_answer(content: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        read_chat(content)
    with pytest.raises(msgspec.MsgspecError):
        read_native(content, PARAMS, make_request())


def test_a_native_answer_is_split_here() -> None:
    answer = read_native(native_answer(), PARAMS, make_request())
    assert answer.reasoning == "hm"
    assert answer.content.strip() == "yes"
    assert answer.text == "hm</think>\n\nyes"
    assert bytes(answer.prompt_token_ids) == b"[5,6,7]"
    assert bytes(answer.output_token_ids) == b"[4, 5]"
    assert answer.token_source == "native"


def test_a_native_tool_call_finishes_as_the_chat_route_would_say() -> None:
    text = "hm</think>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    answer = read_native(native_answer(text=text), PARAMS, make_request(tools=TOOLS))
    assert answer.finish_reason == "tool_calls"
    assert answer.tool_calls[0]["function"]["name"] == "f"


def test_a_native_answer_to_another_prompt_is_malformed() -> None:
    with pytest.raises(MalformedAnswer):
        read_native(native_answer(prompt_tokens=2), PARAMS, make_request())


def test_an_aborted_generation_is_no_success() -> None:
    with pytest.raises(AnswerAborted):
        read_chat(chat_answer(finish_reason="abort"))
    with pytest.raises(AnswerAborted):
        read_native(native_answer(finish_reason={"type": "abort"}), PARAMS, make_request())
