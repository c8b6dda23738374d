"""An answer's text to thinking, content and tool calls, as the server's own parsers tell them.

Enters: the text that follows the generation prompt, whether the model was thinking, the tools.
Leaves: a ParsedAnswer. It exists because the route that returns exact ids on older servers
(/generate) returns raw text, and a conversation goes on from its parts. Pure.

Source: the behaviour of SGLang 0.5.12, which gives ids on that route alone, with the parsers qwen3
and qwen3_coder. One thing is stricter here: a call whose `</function>` is missing stays content,
where the server would guess its end.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, Literal

import msgspec
import orjson

Message = dict[str, Any]

THINK_START = "<think>"
THINK_END = "</think>"
CALL_START = "<tool_call>"

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]*)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_TEXT_TYPES = frozenset({"string", "str", "text", "varchar", "char", "enum"})
_INTEGER_TYPES = ("int", "uint", "long", "short", "unsigned")
_NUMBER_TYPES = ("num", "float")
_BOOLEAN_TYPES = frozenset({"boolean", "bool", "binary"})
_JSON_TYPES = ("object", "arr", "dict", "list")


class ParsedAnswer(msgspec.Struct, frozen=True):
    """The parts of an answer; white space at their edges is kept as it was sampled.

    Attributes:
        reasoning: The thinking, without its tags; empty if none.
        content: The answer after thinking, without parsed tool calls; empty if none.
        tool_calls: Calls in OpenAI form with `arguments` a dict, in order; empty if none.
    """

    reasoning: str
    content: str
    tool_calls: list[Message]


def parse_answer(
    text: str,
    *,
    thinking: bool,
    reasoning_parser: Literal["qwen3"] | None,
    tool_call_parser: Literal["qwen3_coder"] | None,
    tools: str | None,
) -> ParsedAnswer:
    """Take an answer apart.

    Args:
        text: What was sampled after the generation prompt, without the end token.
        thinking: Whether the generation prompt opened `<think>`.
        reasoning_parser: None leaves the thinking in the content, as the server does.
        tool_call_parser: None leaves the calls in the content.
        tools: The prompt's tools as a JSON string; without any, calls are content.
    """
    reasoning, content = (
        split_reasoning(text, thinking=thinking, call_ends_thinking=False)
        if reasoning_parser
        else ("", text)
    )
    if tool_call_parser is None or tools is None or CALL_START not in content:
        return ParsedAnswer(reasoning, content, [])
    calls = _parse_calls(content, _read_schemas(tools))
    if not calls:
        return ParsedAnswer(reasoning, content, [])
    return ParsedAnswer(reasoning, content[: content.index(CALL_START)], calls)


def split_reasoning(
    text: str, *, thinking: bool, call_ends_thinking: bool = True
) -> tuple[str, str]:
    """Split an answer into thinking and the rest, at the first `</think>`.

    With `call_ends_thinking` a tool call ends it too, as for the parser of 0.5.23 (that of 0.5.12
    does not look for one). Without an end, all of it is thinking that was cut.
    """
    if not thinking and THINK_START not in text:
        return "", text
    while text.startswith(THINK_START):
        text = text[len(THINK_START) :]
    before, end, after = text.partition(THINK_END)
    if end or not call_ends_thinking:
        return before, after
    before, start, after = text.partition(CALL_START)
    return before, start + after


def _read_schemas(tools: str) -> dict[str, dict[str, Any]]:
    """Index the tools' parameter schemas by name; what is malformed has no schema."""
    schemas: dict[str, dict[str, Any]] = {}
    try:
        listed = orjson.loads(tools)
    except orjson.JSONDecodeError:
        return schemas
    for tool in listed if isinstance(listed, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            continue
        parameters = function.get("parameters")
        schema = parameters if isinstance(parameters, dict) else {}
        properties = schema.get("properties", schema)
        # The first of two tools with one name counts, as for the server.
        schemas.setdefault(
            str(function.get("name")), properties if isinstance(properties, dict) else {}
        )
    return schemas


def _parse_calls(content: str, schemas: dict[str, dict[str, Any]]) -> list[Message]:
    calls: list[Message] = []
    for block in _CALL.findall(content):
        for name, body in _FUNCTION.findall(block):
            schema = schemas.get(name, {})
            arguments = {
                key: _convert(_strip_newline(value), schema.get(key))
                for key, value in _PARAMETER.findall(body)
            }
            calls.append(
                {
                    "id": f"call_{len(calls)}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
            )
    return calls


def _strip_newline(value: str) -> str:
    """Drop the one newline on each side that the format puts around a value."""
    return value.removeprefix("\n").removesuffix("\n")


def _convert(value: str, schema: Any) -> Any:
    """Convert a parameter by its JSON schema type; what does not convert stays text."""
    if value.lower() == "null":
        return None
    if not isinstance(schema, dict) or "type" not in schema:
        return value
    kind = str(schema["type"]).strip().lower()
    if kind in _TEXT_TYPES:
        return value
    if kind.startswith(_INTEGER_TYPES):
        return _to_integer(value)
    if kind.startswith(_NUMBER_TYPES):
        return _to_number(value)
    if kind in _BOOLEAN_TYPES:
        return value.lower() == "true"
    return _to_structure(value, is_json=kind.startswith(_JSON_TYPES))


def _to_integer(value: str) -> int | str:
    try:
        return int(value)
    except ValueError:
        return value


def _to_number(value: str) -> float | str:
    try:
        number = float(value)
    except ValueError:
        return value
    if not math.isfinite(number):
        return value
    written_as_integer = "." not in value and "e" not in value.lower()
    return int(number) if written_as_integer else number


def _to_structure(value: str, *, is_json: bool) -> Any:
    if is_json:
        try:
            return json.loads(value, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            pass  # Models write Python literals too: tried next.
    try:
        # By way of JSON: tuples become lists, and what JSON does not know stays text.
        return json.loads(json.dumps(ast.literal_eval(value), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
