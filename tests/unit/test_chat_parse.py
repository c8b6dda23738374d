"""An answer is taken apart as SGLang's qwen3 and qwen3_coder parsers do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.chat.parse import ParsedAnswer, parse_answer, split_reasoning

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "plan",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "title": {"type": "string"},
                        "days": {"type": "integer"},
                        "budget": {"type": "number"},
                        "public": {"type": "boolean"},
                        "stops": {"type": "array"},
                        "options": {"type": "object"},
                        "unit": {"type": ["string", "null"]},
                        "free": {"description": "no type"},
                    },
                },
            },
        }
    ]
)


def parse(text: str, *, thinking: bool = True, tools: str | None = TOOLS) -> ParsedAnswer:
    return parse_answer(
        text,
        thinking=thinking,
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        tools=tools,
    )


def call(**parameters: str) -> str:
    lines = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in parameters.items())
    return f"<tool_call>\n<function=plan>\n{lines}</function>\n</tool_call>"


def arguments_of(parsed: ParsedAnswer) -> dict[str, Any]:
    (only,) = parsed.tool_calls
    assert only["type"] == "function"
    return dict(only["function"]["arguments"])


def test_text_begins_inside_the_thinking_and_splits_at_its_first_end() -> None:
    parsed = parse("Hm.\n</think>\n\nFive.</think> Six.")
    assert parsed == ParsedAnswer("Hm.\n", "\n\nFive.</think> Six.", [])


def test_thinking_that_was_cut_is_all_thinking() -> None:
    assert parse("Hm, let me") == ParsedAnswer("Hm, let me", "", [])


def test_an_answer_that_ends_inside_thinking_has_no_content() -> None:
    assert parse("") == ParsedAnswer("", "", [])


def test_a_repeated_think_tag_at_the_start_is_dropped_and_one_inside_is_kept() -> None:
    assert parse("<think>Hm.</think>Five.") == ParsedAnswer("Hm.", "Five.", [])
    assert parse("\x19<think>") == ParsedAnswer("\x19<think>", "", [])


def test_without_thinking_all_is_content_unless_the_model_thinks_anyway() -> None:
    assert parse("Five.", thinking=False) == ParsedAnswer("", "Five.", [])
    assert parse("<think>Hm.</think>Five.", thinking=False) == ParsedAnswer("Hm.", "Five.", [])


def test_a_tool_call_in_thinking_that_was_never_closed_is_thinking_as_for_0_5_12() -> None:
    text = f"I should ask. {call(title='x')}"
    assert parse(text) == ParsedAnswer(text, "", [])


def test_for_the_newer_server_a_tool_call_ends_the_thinking() -> None:
    text = f"I should ask. {call(title='x')}"
    assert split_reasoning(text, thinking=True) == ("I should ask. ", call(title="x"))


def test_content_before_a_call_stays_and_the_call_leaves_it() -> None:
    parsed = parse(f"Hm.</think>\n\nOne moment.\n{call(title='Oslo')}\nDone.")
    assert parsed.content == "\n\nOne moment.\n"
    assert parsed.tool_calls == [
        {
            "id": "call_0",
            "type": "function",
            "function": {"name": "plan", "arguments": {"title": "Oslo"}},
        }
    ]


@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        ("title", "7", "7"),
        ("title", "a\n\nb", "a\n\nb"),
        ("title", "null", None),
        ("days", "7", 7),
        ("days", "seven", "seven"),
        ("budget", "7", 7),
        ("budget", "7.5", 7.5),
        ("budget", "1e3", 1000.0),
        ("budget", "nan", "nan"),
        ("public", "True", True),
        ("public", "perhaps", False),
        ("stops", '["a", 1]', ["a", 1]),
        ("stops", "['a', 1]", ["a", 1]),
        ("stops", "{1, 2}", "{1, 2}"),
        ("options", '{"k": [1]}', {"k": [1]}),
        ("options", "{broken", "{broken"),
        ("options", '{"k": NaN}', '{"k": NaN}'),
        ("stops", "(1, 2)", [1, 2]),
        ("unit", "km", "km"),
        ("free", "7", "7"),
        ("unheard_of", "7", "7"),
    ],
)
def test_a_parameter_becomes_its_schema_s_type_or_stays_text(
    name: str, written: str, value: object
) -> None:
    parsed = arguments_of(parse(f"</think>{call(**{name: written})}"))[name]
    assert parsed == value
    assert type(parsed) is type(value)


def test_several_calls_keep_their_order() -> None:
    parsed = parse(f"</think>{call(title='a')}\n{call(title='b')}")
    assert [c["function"]["arguments"]["title"] for c in parsed.tool_calls] == ["a", "b"]
    assert [c["id"] for c in parsed.tool_calls] == ["call_0", "call_1"]


@pytest.mark.parametrize(
    "broken",
    [
        call(title="x").removesuffix("</tool_call>"),
        call(title="x").replace("</function>", ""),
        "<tool_call>\n{}\n</tool_call>",
        "<tool_call>",
        "<function=plan>\n</function>",
    ],
)
def test_an_unfinished_or_malformed_call_stays_content(broken: str) -> None:
    assert parse(f"</think>Ask: {broken}") == ParsedAnswer("", f"Ask: {broken}", [])


def test_without_tools_or_parsers_nothing_is_taken_out() -> None:
    text = f"Hm.</think>{call(title='x')}"
    assert parse(text, tools=None) == ParsedAnswer("Hm.", call(title="x"), [])
    plain = parse_answer(
        text, thinking=True, reasoning_parser=None, tool_call_parser=None, tools=TOOLS
    )
    assert plain == ParsedAnswer("", text, [])


def test_a_call_without_parameters_and_one_without_a_closing_parameter_are_calls() -> None:
    bare = "</think><tool_call><function=plan></function></tool_call>"
    assert arguments_of(parse(bare)) == {}
    open_ended = (
        "</think><tool_call><function=plan><parameter=title>\na\n<parameter=days>3"
        "</function></tool_call>"
    )
    assert arguments_of(parse(open_ended)) == {"title": "a", "days": 3}


@given(st.text(), st.booleans())
def test_no_text_is_lost_or_invented_where_there_are_no_calls(text: str, thinking: bool) -> None:
    parsed = parse(text.replace("<think>", ""), thinking=thinking, tools=None)
    joined = parsed.reasoning + parsed.content
    assert joined == text.replace("<think>", "").replace("</think>", "", 1 if thinking else 0)


@given(st.text() | st.recursive(st.integers() | st.floats(), st.tuples).map(repr))
def test_whatever_a_model_writes_parses_to_what_json_can_hold(text: str) -> None:
    parsed = parse(f"</think>{call(options=text)}")
    assert json.loads(json.dumps(parsed.tool_calls, allow_nan=False)) == parsed.tool_calls
