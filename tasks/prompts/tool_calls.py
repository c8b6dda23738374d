"""Recorded tool calls and results, in OpenAI form and in the Hermes manner of text with tags.

Enters: `tool_calls` lists, call texts, assistant and tool texts with <tool_call> or
<tool_response>, system texts with a <tools> list. Leaves: calls whose arguments are dicts, plain
results, and the system text without the instructions of another model's format. It exists because
the target's own template writes the tags: a second set of them in the text would teach it to
answer in a foreign format.
"""

from __future__ import annotations

from typing import Any

from tasks.prompts.record import Message, RowRefused
from tasks.prompts.tool_schemas import encode_json, parse_loosely

_HERMES_INTRODUCTIONS = (
    "You are provided with function signatures within <tools>",
    "Here are the available tools:",
)


def read_calls(value: object) -> list[Message]:
    """Give recorded calls as `{"type": "function", "function": {"name", "arguments": dict}}`.

    Takes one call or a list of them, as objects or as JSON text.

    Raises:
        RowRefused: `malformed_tool_call`.
    """
    if isinstance(value, str):
        value = _parse_or_refuse(value)
    calls = value if isinstance(value, list | tuple) else [value]
    return [_read_call(_parse_or_refuse(one) if isinstance(one, str) else one) for one in calls]


def split_call_text(text: str) -> tuple[str, list[Message]]:
    """Take the <tool_call> blocks out of an assistant's text.

    Returns:
        The text outside of the blocks, and the calls in order.

    Raises:
        RowRefused: `malformed_tool_call` for a block that holds no call.
    """
    outside, *blocks = text.split("<tool_call>")
    calls: list[Message] = []
    for block in blocks:
        body, _, after = block.partition("</tool_call>")
        calls.extend(read_calls(body))
        outside += after
    return outside.strip(), calls


def split_results(text: str) -> list[str]:
    """Take each <tool_response> out of a tool's text; a text without them is one result."""
    _, *blocks = text.split("<tool_response>")
    if not blocks:
        return [text]
    return [block.partition("</tool_response>")[0].strip() for block in blocks]


def take_tool_list(system: str) -> tuple[str, str | None]:
    """Take the <tools> list out of a system text, and the call format that goes with it.

    Returns:
        The system text without either, and the list's text; the same text and None if it has no
        list. An empty pair of tags (the Hermes introduction names them so) is not a list.

    Raises:
        RowRefused: `malformed_tools` for a list without an end.
    """
    at = system.find("<tools>")
    while at >= 0:
        body, end_tag, _ = system[at + len("<tools>") :].partition("</tools>")
        if not end_tag:
            raise RowRefused("malformed_tools", "the <tools> list of the system text has no end")
        end = at + len("<tools>") + len(body) + len(end_tag)
        if body.strip():
            return _cut(system, at, end), body.strip()
        at = system.find("<tools>", end)
    return system, None


def _cut(system: str, start: int, end: int) -> str:
    for introduction in _HERMES_INTRODUCTIONS:
        begin = system.find(introduction, 0, start)
        start = begin if begin >= 0 else start
    # What stands between the list and the last example call is the format of the calls.
    example = system.rfind("</tool_call>", end)
    end = example + len("</tool_call>") if example >= 0 else end
    return "\n\n".join(part for part in (system[:start].strip(), system[end:].strip()) if part)


def _read_call(value: object) -> Message:
    if not isinstance(value, dict):
        raise RowRefused("malformed_tool_call", f"a call is {type(value).__name__}, not an object")
    function: Any = value.get("function")
    if not isinstance(function, dict):
        function = value
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowRefused("malformed_tool_call", "a call has no name")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parse_or_refuse(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise RowRefused("malformed_tool_call", "a call's arguments are no object")
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    encode_json(call, "malformed_tool_call", "a call")
    return call


def _parse_or_refuse(text: str) -> object:
    try:
        return parse_loosely(text.strip())
    except ValueError:
        raise RowRefused("malformed_tool_call", "a call is no JSON") from None
