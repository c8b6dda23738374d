"""The routes that parse a given text: thinking apart from the answer, and calls out of it.

Enters: the JSON body of /separate_reasoning or /parse_function_call. Leaves: the answer's body, in
sglang's shape. It exists so that a client's own parsing can be held against the server's.
"""

from __future__ import annotations

from typing import Any

from infra.simulator.tool_calls import parse_tool_calls


def separate_reasoning(body: dict[str, Any], version: str) -> dict[str, Any]:
    """Answer /separate_reasoning; without `<think>` nothing in the text is thinking."""
    text = str(body.get("text", ""))
    reasoning, content = split_reasoning(text, version) if "<think>" in text else ("", text)
    return {"reasoning_text": reasoning, "text": content}


def parse_function_call(body: dict[str, Any]) -> dict[str, Any]:
    """Answer /parse_function_call."""
    content, calls = parse_tool_calls(str(body.get("text", "")), list(body.get("tools") or ()))
    return {
        "normal_text": content,
        "calls": [
            {
                "tool_index": call["index"],
                "name": call["function"]["name"],
                "parameters": call["function"]["arguments"],
            }
            for call in calls
        ],
    }


def split_reasoning(text: str, version: str) -> tuple[str, str]:
    """Split a text that begins inside thinking."""
    if version == "0.5.12":
        reasoning, _, content = text.replace("<think>", "").strip().partition("</think>")
        return reasoning.strip(), content.strip()
    text = text.removeprefix("<think>")
    if "</think>" not in text and "<tool_call>" in text:
        at = text.index("<tool_call>")
        return text[:at], text[at:]
    reasoning, _, content = text.partition("</think>")
    return reasoning, content
