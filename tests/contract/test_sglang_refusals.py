"""What is refused, and in which envelope.

The expectations are written down from recorded answers of sglang 0.5.12 and 0.5.23.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.target import Target

ENVELOPE_KEYS = {"object", "message", "type", "param", "code"}


def _expect_envelope(answer: tuple[int, Any], kind: str) -> str:
    status, body = answer
    assert status == 400
    assert set(body) == ENVELOPE_KEYS
    assert (body["object"], body["param"], body["code"]) == ("error", None, 400)
    assert body["type"] == kind
    return str(body["message"])


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"messages": []}, "BadRequestError", "cannot be empty"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "Bad Request", "'role' must be"),
        ({"max_tokens": "many"}, "Bad Request", "int_parsing"),
        ({"temperature": -1}, "BadRequestError", "temperature must be"),
        ({"top_p": 2.0}, "BadRequestError", "top_p must be in (0, 1], got 2.0."),
        ({"n": 0}, "BadRequest", "must not be zero"),
        ({"max_tokens": 10**7}, "BadRequestError", "max_completion_tokens is too large"),
    ],
)
def test_a_wrong_field_is_a_400_in_the_envelope(
    target: Target, fields: dict[str, Any], kind: str, words: str
) -> None:
    assert words in _expect_envelope(target.chat(**fields), kind)


def test_a_body_that_is_not_json_is_a_400_in_the_envelope(target: Target) -> None:
    message = _expect_envelope(target.post("/v1/chat/completions", b"{not json"), "Bad Request")
    assert "json_invalid" in message


def test_missing_messages_are_a_400_in_the_envelope(target: Target) -> None:
    message = _expect_envelope(target.post("/v1/chat/completions", {"model": "m"}), "Bad Request")
    assert "Field required" in message


def test_a_prompt_beyond_the_context_is_a_400_that_says_so(target: Target) -> None:
    long = [{"role": "user", "content": "zqxj " * 4 * target.context_length}]
    message = _expect_envelope(target.chat(messages=long), "BadRequestError")
    assert "is longer than the model's context length" in message
