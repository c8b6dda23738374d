"""The fields of a request body, and how a wrong one is refused.

Enters: raw bytes and decoded values. Leaves: values of the right type, or a Refusal. It exists for
the error envelopes of sglang: every wrong field is a 400, never a 422.
"""

from __future__ import annotations

from typing import Any

import orjson


class Refusal(Exception):
    """A request that is answered with an error: HTTP status and JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


def refuse(message: str, kind: str = "BadRequestError", status: int = 400) -> Refusal:
    """Build the error envelope of the OpenAI routes."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Refusal(status, body)


def refuse_natively(message: str) -> Refusal:
    """Build the error body of /generate."""
    return Refusal(400, {"error": {"message": message}})


def refuse_field(kind: str, loc: tuple[str | int, ...], message: str, value: Any) -> Refusal:
    """Build the envelope around one error of the schema, at `loc` in the body."""
    detail = {"type": kind, "loc": ("body", *loc), "msg": message, "input": value}
    return refuse(f"1 validation error:\n  {detail!r}\n", "Bad Request")


def parse_body(raw: bytes) -> dict[str, Any]:
    """Decode a JSON object.

    Raises:
        Refusal: 400 where it is not one.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise refuse_field("json_invalid", (error.pos,), "JSON decode error", {}) from error
    if not isinstance(body, dict):
        raise refuse_field("model_attributes_type", (), "Input should be a valid dictionary", body)
    return body


def read_int(body: dict[str, Any], name: str) -> int | None:
    """Read a whole number, also one written as a float or a string."""
    value = body.get(name)
    if value is None or type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            raise refuse_field("int_parsing", (name,), message, value) from None
    raise refuse_field("int_type", (name,), "Input should be a valid integer", value)


def read_float(body: dict[str, Any], name: str, default: float) -> float:
    """Read a number, also one written as a string."""
    value = body.get(name)
    if value is None:
        return default
    try:
        return float(value)
    except (TypeError, ValueError):
        message = "Input should be a valid number"
        raise refuse_field("float_parsing", (name,), message, value) from None


def read_stop(value: Any) -> tuple[str, ...]:
    """Read stop strings: none, one, or a list of them."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(stop, str) for stop in value):
        return tuple(stop for stop in value if stop)
    raise refuse_field("string_type", ("stop",), "Input should be a valid string", value)
