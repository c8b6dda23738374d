"""Tools and calls of every form become one form, and broken ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tasks.prompts.record import RowRefused
from tasks.prompts.tool_calls import split_call_text, split_results, take_tool_list
from tasks.prompts.tool_schemas import MAX_DEPTH, normalize_tools
from tests.support.prompts import accepted, refusal_of

HERMES: dict[str, Any] = {
    "messages": "conversations",
    "role_key": "from",
    "content_key": "value",
    "tools": "tools",
    "tools_in_system": True,
}
TIDES = {
    "name": "get_tides",
    "description": "Tides of a harbour.",
    "parameters": {"type": "object", "properties": {"harbour": {"type": "string"}}},
}
WRAPPED = [{"type": "function", "function": TIDES}]
SYSTEM = (
    "You are a function calling AI model. You are provided with function signatures within "
    "<tools></tools> XML tags. You may call one or more functions. Here are the available tools: "
    "<tools> %s </tools> For each function call return a json object within <tool_call></tool_call>"
    ' XML tags as follows:\n<tool_call>\n{"arguments": <args-dict>}\n</tool_call>\nBe polite.'
)
CALL = '<tool_call>\n{"name": "get_tides", "arguments": {"harbour": "Leith"}}\n</tool_call>'
PARSED = [
    {"type": "function", "function": {"name": "get_tides", "arguments": {"harbour": "Leith"}}}
]


def hermes(tools: object, *turns: tuple[str, str]) -> dict[str, object]:
    return {"tools": tools, "conversations": [{"from": r, "value": t} for r, t in turns]}


@pytest.mark.parametrize(
    "given",
    [WRAPPED, json.dumps(WRAPPED), TIDES, [TIDES], json.dumps([TIDES]), [json.dumps(TIDES)],
     str(WRAPPED), [*WRAPPED, TIDES]],
)  # fmt: skip
def test_every_form_of_tools_becomes_wrapped_functions(given: object) -> None:
    tools = normalize_tools(given)
    assert tools is not None
    assert json.loads(tools) == WRAPPED


@pytest.mark.parametrize("given", [None, "null", "[]", "", " ", []])
def test_no_tools_in_any_form_are_none(given: object) -> None:
    assert normalize_tools(given) is None


def test_python_type_names_become_those_of_json_schema() -> None:
    properties = {
        "a": {"type": "dict", "properties": {"type": {"type": "float"}}},
        "b": {"type": "tuple", "items": {"type": "int"}},
        "c": {"type": "any", "default": {"type": "float"}},
        "d": {"type": ["float", "null"]},
        "e": None,
    }
    tools = normalize_tools({"name": "f", "parameters": {"type": "dict", "properties": properties}})
    assert tools is not None
    assert json.loads(tools)[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"type": {"type": "number"}}},
            "b": {"type": "array", "items": {"type": "integer"}},
            "c": {"default": {"type": "float"}},
            "d": {"type": ["number", "null"]},
        },
    }


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ("[{", "malformed_tools"),
        (7, "malformed_tools"),
        ([7], "malformed_tools"),
        ([{"description": "no name"}], "malformed_tools"),
        ([TIDES, {**TIDES, "description": "Another."}], "malformed_tools"),
        ([{"name": "f", "parameters": deep(MAX_DEPTH + 2)}], "malformed_tools"),
        ([{"name": "f", "default": deep(100_000)}], "malformed_tools"),
        ([{"name": "f", "description": "\ud800"}], "not_text"),
        ([{"name": "f", "description": "\x00"}], "not_text"),
        ([{"name": "f", "x": 1 << 80}], "malformed_tools"),
    ],
)
def test_broken_tools_are_refused(given: object, kind: str) -> None:
    with pytest.raises(RowRefused) as caught:
        normalize_tools(given)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        CALL.replace('"', "'"),
        CALL.replace("\n", "\\n"),
        CALL.replace("\n", ""),
        CALL.replace('{"harbour": "Leith"}', '"{\\"harbour\\": \\"Leith\\"}"'),
    ],
)
def test_a_call_is_read_from_json_from_python_and_between_literal_line_ends(text: str) -> None:
    assert split_call_text(f"Let me look. {text}") == ("Let me look.", PARSED)


def test_two_calls_in_one_text_are_two_calls() -> None:
    assert split_call_text(f"{CALL}\n{CALL}") == ("", PARSED * 2)


@pytest.mark.parametrize(
    "body",
    [
        "{harbour",
        "",
        "7",
        '{"arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        "f()",
        "(" * 9999,
    ],
)
def test_a_broken_call_is_refused(body: str) -> None:
    with pytest.raises(RowRefused) as caught:
        split_call_text(f"<tool_call>{body}</tool_call>")
    assert caught.value.kind == "malformed_tool_call"


def test_each_response_becomes_a_result_without_its_tags() -> None:
    text = '<tool_response>\n{"a": 1}\n</tool_response>\n<tool_response>2</tool_response>'
    assert split_results(text) == ['{"a": 1}', "2"]
    assert split_results("plain") == ["plain"]


def test_the_tool_list_leaves_the_system_text_with_the_format_that_goes_with_it() -> None:
    system, listed = take_tool_list(SYSTEM % json.dumps(WRAPPED))
    assert (system, listed) == (
        "You are a function calling AI model.\n\nBe polite.",
        json.dumps(WRAPPED),
    )
    assert take_tool_list("Use <tools></tools> well.") == ("Use <tools></tools> well.", None)


def test_a_hermes_row_becomes_a_tool_loop_in_openai_form() -> None:
    row = hermes(
        json.dumps([TIDES]),
        ("system", SYSTEM % "[]"),
        ("human", "Low tide in Leith?"),
        ("gpt", CALL),
        ("tool", '<tool_response>\n{"low": "14:05"}\n</tool_response>'),
        ("gpt", "At 14:05."),
    )
    result = accepted(row, **HERMES)
    assert result.messages == [
        {"role": "system", "content": "You are a function calling AI model.\n\nBe polite."},
        {"role": "user", "content": "Low tide in Leith?"},
        {"role": "assistant", "content": "", "tool_calls": PARSED},
        {"role": "tool", "content": '{"low": "14:05"}'},
    ]
    assert result.tools is not None
    assert json.loads(result.tools) == WRAPPED


def test_a_list_in_the_system_text_serves_where_the_column_has_none() -> None:
    row = hermes("[]", ("system", SYSTEM % json.dumps([TIDES])), ("human", "Tides?"))
    tools = accepted(row, **HERMES).tools
    assert tools is not None
    assert json.loads(tools) == WRAPPED


@pytest.mark.parametrize("tools", ["[]", "null", None])
@pytest.mark.parametrize("listed", ['[{"name": "get_', "[{'name'"])
def test_a_broken_list_in_the_system_text_is_refused(tools: object, listed: str) -> None:
    row = hermes(tools, ("system", SYSTEM % listed), ("human", "Tides?"))
    assert refusal_of(row, **HERMES) == "malformed_tools"
    row = hermes(tools, ("system", "Tools: <tools>[{"), ("human", "Tides?"))
    assert refusal_of(row, **HERMES) == "malformed_tools"


def test_recorded_calls_without_tools_are_refused() -> None:
    row = hermes("null", ("human", "Tides?"), ("gpt", CALL), ("tool", "14:05"))
    assert refusal_of(row, **HERMES) == "malformed_tools"


def test_a_broken_call_counts_only_where_it_is_not_generated_anew_unseen() -> None:
    broken = CALL.replace("}}", "")
    last = hermes([TIDES], ("human", "Tides?"), ("gpt", broken))
    assert [m["role"] for m in accepted(last, **HERMES).messages] == ["user"]
    inside = hermes([TIDES], ("human", "Tides?"), ("gpt", broken), ("tool", "14:05"))
    assert refusal_of(inside, **HERMES) == "malformed_tool_call"


@pytest.mark.parametrize(
    ("call_role", "result_role"),
    [("function_call", "observation"), ("tool_call", "tool_response")],
)
def test_roles_of_calls_and_results_are_known(call_role: str, result_role: str) -> None:
    row = hermes(
        [TIDES],
        ("human", "Tides?"),
        (call_role, '{"name": "get_tides", "arguments": {"harbour": "Leith"}}'),
        (result_role, "14:05"),
    )
    messages = accepted(row, **HERMES).messages
    assert messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": PARSED},
        {"role": "tool", "content": "14:05"},
    ]


@pytest.mark.parametrize("arguments", ['{"harbour": "Leith"}', {"harbour": "Leith"}])
def test_openai_calls_have_their_arguments_as_a_dict(arguments: object) -> None:
    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "get_tides", "arguments": arguments},
    }
    row = {
        "messages": [
            {"role": "user", "content": "Tides?"},
            {"role": "assistant", "content": None, "thinking": "Look.", "tool_calls": [call]},
            {"role": "tool", "name": "get_tides", "content": "14:05"},
        ],
        "tools": [TIDES],
    }
    messages = accepted(row, messages="messages", tools="tools").messages
    assert messages[1:] == [
        {"role": "assistant", "content": "", "tool_calls": PARSED},
        {"role": "tool", "name": "get_tides", "content": "14:05"},
    ]
