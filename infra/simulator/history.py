"""Messages and tools on their way into the chat template.

Enters: what the client sent. Leaves: what SGLang hands to the template, which is not the same.
"""

from __future__ import annotations

from typing import Any

import orjson

from infra.simulator.fields import refuse_field


def prepare_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Do to messages what SGLang does before the template sees them.

    Arguments in JSON text become objects, null content becomes empty, and a last assistant turn
    becomes a user turn.

    Raises:
        ValueError: where arguments are not a JSON object.
    """
    prepared = [_prepare_message(message) for message in messages]
    last = prepared[-1]
    if last["role"] == "assistant" and isinstance(last.get("content"), str):
        prepared[-1] = {"role": "user", "content": last["content"]}
    return prepared


def _prepare_message(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    content = message.get("content")
    if calls is None and isinstance(content, str):
        return message
    message = {**message, "content": "" if content is None else content}
    if isinstance(calls, list):
        message["tool_calls"] = [_prepare_call(call) for call in calls]
    return message


def _prepare_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    parsed = orjson.loads(arguments)
    if not isinstance(parsed, dict):
        raise ValueError("Assistant tool call function.arguments must be a JSON object.")
    return {**call, "function": {**function, "arguments": parsed}}


def list_tools(tools: Any, version: str) -> list[dict[str, Any]] | None:
    """List tools as SGLang's own records of them: its fields only, the absent ones null.

    So a tool that a client renders as it was sent differs from what the server renders.
    Source: the prompt_tokens of the recorded requests with a tool, under both versions.
    """
    if not tools:
        return None
    prepared = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            loc = ("tools", index, "function", "name")
            raise refuse_field("missing", loc, "Field required", tool)
        dumped = {
            "description": function.get("description"),
            "name": function["name"],
            "parameters": function.get("parameters"),
        }
        if version == "0.5.12" or "strict" in function:
            dumped["strict"] = bool(function.get("strict"))
        prepared.append(
            {
                "type": tool.get("type", "function"),
                "function": dumped,
                "defer_loading": tool.get("defer_loading"),
            }
        )
    return prepared
