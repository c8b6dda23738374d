"""Tool calls in the XML form of Qwen3.6: written for an answer, and parsed out of one.

Enters: functions with JSON schemas, or answer text. Leaves: `<tool_call>` text, or calls in the
form of OpenAI. Source: parsing follows the behaviour of sglang's qwen3_coder parser, which also
makes a call out of one that was cut off.
"""

from __future__ import annotations

import ast
import json
import re
import uuid
from typing import Any

from infra.simulator.corpus import ADJECTIVES, NOUNS
from infra.simulator.draws import Draws

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>]*)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>]*)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|$)", re.DOTALL
)


def write_tool_call(function: dict[str, Any], draws: Draws) -> str:
    """Write a call of a function with arguments that fit its schema."""
    parameters = function.get("parameters")
    schema = parameters if isinstance(parameters, dict) else {}
    required = schema.get("required") or ()
    lines = [f"<tool_call>\n<function={function['name']}>"]
    for name, kind in (schema.get("properties") or {}).items():
        if name in required or draws.below(4):
            lines.append(f"<parameter={name}>\n{_write_value(kind, draws)}\n</parameter>")
    return "\n".join([*lines, "</function>\n</tool_call>"])


def _write_value(schema: Any, draws: Draws) -> str:
    schema = schema if isinstance(schema, dict) else {}
    if options := schema.get("enum"):
        return str(options[draws.below(len(options))])
    match schema.get("type"):
        case "integer":
            return str(draws.below(100))
        case "number":
            return f"{draws.below(100)}.5"
        case "boolean":
            return ("true", "false")[draws.below(2)]
        case "array":
            return json.dumps([NOUNS[draws.below(len(NOUNS))]])
        case "object":
            return json.dumps({NOUNS[draws.below(len(NOUNS))]: draws.below(10)})
        case _:
            return f"{ADJECTIVES[draws.below(len(ADJECTIVES))]} {NOUNS[draws.below(len(NOUNS))]}"


def parse_tool_calls(text: str, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Split answer text at its tool calls: the text before the first, and the calls.

    Arguments are typed by the tool's schema and returned as a JSON string.
    """
    if "<tool_call>" not in text:
        return text, []
    calls: list[dict[str, Any]] = []
    for body in _CALL.findall(text) or [text]:
        for name, parameters in _FUNCTION.findall(body):
            types = _read_types(name, tools)
            arguments = {
                key: _convert(value, types.get(key))
                for key, value in _PARAMETER.findall(parameters)
            }
            encoded = json.dumps(arguments, ensure_ascii=False)
            calls.append(
                {
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "index": len(calls),
                    "type": "function",
                    "function": {"name": name, "arguments": encoded},
                }
            )
    if not calls:
        return text, []
    return text[: text.index("<tool_call>")], calls


def _read_types(name: str, tools: list[dict[str, Any]]) -> dict[str, str]:
    for tool in tools:
        if tool["function"]["name"] == name:
            parameters = tool["function"].get("parameters") or {}
            properties = parameters.get("properties") or {}
            return {
                key: str(schema["type"]).lower()
                for key, schema in properties.items()
                if isinstance(schema, dict) and "type" in schema
            }
    return {}


def _convert(value: str, kind: str | None) -> Any:
    if value.lower() == "null":
        return None
    if kind is None or kind in ("string", "str", "text", "enum"):
        return value
    if kind in ("boolean", "bool"):
        return value.lower() == "true"
    try:
        if kind.startswith("int"):
            return int(value)
        if kind.startswith(("num", "float")):
            number = float(value)
            return int(number) if number.is_integer() and value.lstrip("-").isdigit() else number
        return json.loads(value)
    except ValueError:
        pass
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
