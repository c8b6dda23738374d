"""Tools in every form that datasets give them, to one JSON string of OpenAI function tools.

Enters: a list, a JSON string, null, bare function dicts, Python type names. Leaves: one JSON
string, or None for no tools. It exists because templates and servers read one form only, and
because Arrow would unify tools and inject nulls unless they are kept as a string.
"""

from __future__ import annotations

import ast
import json
import threading
import warnings
from typing import Any

import orjson

from tasks.prompts.record import RowRefused

MAX_DEPTH = 64
_MAX_LITERAL_CHARS = 100_000
_LITERAL_LOCK = threading.Lock()

# JSON Schema has no `any`: a schema without a type takes any value.
_TYPES: dict[str, str | None] = {
    "dict": "object", "map": "object", "hashmap": "object", "object": "object",
    "float": "number", "double": "number", "number": "number", "decimal": "number",
    "int": "integer", "long": "integer", "integer": "integer",
    "str": "string", "string": "string", "char": "string",
    "bool": "boolean", "boolean": "boolean",
    "tuple": "array", "list": "array", "set": "array", "array": "array", "arraylist": "array",
    "none": "null", "nonetype": "null", "null": "null",
    "any": None,
}  # fmt: skip
_VERBATIM = frozenset(("default", "enum", "const", "examples", "example"))


def normalize_tools(value: object) -> str | None:
    """Give tools as one JSON string of `{"type": "function", "function": {...}}`, or None.

    A tool given twice with the same definition is kept once.

    Raises:
        RowRefused: `malformed_tools` for what is no tool, or two definitions under one name.
    """
    if isinstance(value, str):
        value = _parse_or_refuse(value) if value.strip() else None
    if value is None:
        return None
    items = [value] if isinstance(value, dict) else value
    if not isinstance(items, list | tuple):
        raise RowRefused("malformed_tools", f"tools are {type(value).__name__}, not a list")
    tools: dict[str, bytes] = {}
    for item in items:
        tool = _normalize_tool(_parse_or_refuse(item) if isinstance(item, str) else item)
        encoded = encode_json(tool, "malformed_tools", "a tool")
        if tools.setdefault(tool["function"]["name"], encoded) != encoded:
            raise RowRefused("malformed_tools", "two tools of one name")
    return f"[{b','.join(tools.values()).decode()}]" if tools else None


def parse_loosely(text: str) -> object:
    """Parse JSON, also with raw or literal line ends, also written as a Python literal.

    Raises:
        ValueError: None of these.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        unescaped = text.replace("\\n", "\n")
    for candidate in (text, unescaped):
        try:
            return json.loads(candidate, strict=False)
        except (ValueError, RecursionError):
            continue
    for candidate in (text, unescaped):
        try:
            return _parse_literal(candidate.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
    raise ValueError("neither JSON nor a Python literal")


def encode_json(value: object, kind: Any, what: str) -> bytes:
    """Encode a value of a row as JSON.

    Raises:
        RowRefused: `kind` if it has no JSON form or nests too deeply; `not_text` for a NUL or a
            lone surrogate inside.
    """
    if _is_too_deep(value):
        raise RowRefused(kind, f"{what} nests deeper than {MAX_DEPTH}")
    try:
        encoded = orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        if "surrogate" in str(error):
            raise RowRefused("not_text", f"{what} holds a lone surrogate") from None
        raise RowRefused(kind, f"{what} has no JSON form") from None
    if b"\\u0000" in encoded and _holds_nul(value):
        raise RowRefused("not_text", f"{what} holds a NUL character")
    return encoded


def _parse_literal(text: str) -> object:
    if len(text) > _MAX_LITERAL_CHARS:
        raise ValueError("too long for a literal")
    # Filters of warnings are global: the lock keeps sources read side by side from mixing them.
    with _LITERAL_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


def _parse_or_refuse(text: str) -> object:
    try:
        return parse_loosely(text)
    except ValueError:
        raise RowRefused("malformed_tools", "tools are no JSON") from None


def _normalize_tool(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RowRefused("malformed_tools", f"a tool is {type(item).__name__}, not an object")
    function = item.get("function")
    if not isinstance(function, dict):
        function = item
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise RowRefused("malformed_tools", "a tool has no name")
    kept = {
        key: value
        for key, value in function.items()
        if value is not None and key not in ("parameters", "type")
    }
    kept["parameters"] = _normalize_parameters(function.get("parameters"))
    return {"type": "function", "function": kept}


def _normalize_parameters(value: object) -> object:
    if isinstance(value, str):
        value = _parse_or_refuse(value) if value.strip() else None
    if not value:
        return {"type": "object", "properties": {}}
    if not isinstance(value, dict):
        raise RowRefused("malformed_tools", "a tool's parameters are no object")
    schema = _clean_schema(value, 0)
    # Some datasets give the properties alone.
    if "properties" not in schema and all(isinstance(part, dict) for part in schema.values()):
        return {"type": "object", "properties": schema}
    return schema


def _clean_schema(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RowRefused("malformed_tools", f"a tool nests deeper than {MAX_DEPTH}")
    if isinstance(value, list | tuple):
        return [_clean_schema(part, depth + 1) for part in value]
    if not isinstance(value, dict):
        return value
    cleaned: dict[Any, Any] = {}
    for key, part in value.items():
        if part is None:  # injected by Arrow where it unified the tools of many rows
            continue
        if key == "type" and isinstance(part, str):
            known = _TYPES.get(part.lower(), part)
            if known is not None:
                cleaned[key] = known
        elif key == "type" and isinstance(part, list):
            cleaned[key] = [
                (_TYPES.get(one.lower()) or one) if isinstance(one, str) else one for one in part
            ]
        else:
            cleaned[key] = part if key in _VERBATIM else _clean_schema(part, depth + 1)
    return cleaned


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list | tuple)
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def _holds_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_holds_nul(part) for pair in value.items() for part in pair)
    if isinstance(value, list | tuple):
        return any(_holds_nul(part) for part in value)
    return False
