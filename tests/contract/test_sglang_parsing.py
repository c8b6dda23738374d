"""Our parsing of an answer's text is the server's own: thinking, content and tool calls.

White space at the edges is left out of the comparison: the server strips it, and we keep what was
sampled.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tasks.chat.parse import parse_answer, split_reasoning
from tests.contract.target import Target

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "book_table",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string"},
                    "seats": {"type": "integer"},
                    "price": {"type": "number"},
                    "outside": {"type": "boolean"},
                    "dishes": {"type": "array"},
                    "options": {"type": "object"},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object"}}},
]


def call(name: str, **parameters: str) -> str:
    lines = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items()
    )
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


THOUGHTS = [
    "So it is 5.\n</think>\n\nThe answer is 5.",
    "</think>\n\nAt once.",
    "cut in the middle of a thou",
    "one </think> two </think> three",
    "I shall book.\n" + call("cancel"),
    "ends with nothing after\n</think>",
]
ANSWERS = [
    "No call at all, only <b>text</b>.",
    "Booked:\n" + call("book_table", place="Chez Anna", seats="4", price="12.5", outside="true"),
    call("book_table", dishes='["soup", "bread"]', options='{"corner": true}', seats="many"),
    call("book_table", place="null", price="7", outside="False"),
    call("cancel") + "\n" + call("book_table", place="two\nlines"),
    call("unknown_tool", seats="4"),
    call("book_table", unknown_parameter="12"),
    "text that names <tool_call> without one",
]


@pytest.mark.parametrize("text", THOUGHTS)
def test_thinking_is_split_as_the_server_splits_it(target: Target, text: str) -> None:
    body = {"text": f"<think>\n{text}", "reasoning_parser": "qwen3"}
    status, theirs = target.post("/separate_reasoning", body)
    assert status == 200
    ours = split_reasoning(text, thinking=True, call_ends_thinking=not target.is_old)
    expected = (theirs["reasoning_text"] or "", theirs["text"] or "")
    assert tuple(map(str.strip, ours)) == tuple(map(str.strip, expected))


@pytest.mark.parametrize("text", ANSWERS)
def test_tool_calls_are_parsed_as_the_server_parses_them(target: Target, text: str) -> None:
    body = {"text": text, "tools": TOOLS, "tool_call_parser": "qwen3_coder"}
    status, theirs = target.post("/parse_function_call", body)
    assert status == 200, theirs
    ours = parse_answer(
        text,
        thinking=False,
        reasoning_parser="qwen3",
        tool_call_parser="qwen3_coder",
        tools=orjson.dumps(TOOLS).decode(),
    )
    calls = [each["function"] for each in ours.tool_calls]
    assert [(each["name"], each["arguments"]) for each in calls] == [
        (each["name"], orjson.loads(each["parameters"])) for each in theirs["calls"]
    ]
    assert ours.content.strip() == theirs["normal_text"].strip()
