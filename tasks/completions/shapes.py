"""What the servers answer, as far as it is read: everything else in an answer is passed over.

Enters: nothing. Leaves: two decoders, made once. Ids are `Raw`: bytes that nothing here parses.
Source: answers recorded from SGLang 0.5.12 and 0.5.23.
"""

from __future__ import annotations

import msgspec


class CalledFunction(msgspec.Struct):
    """Name and arguments of a call; the arguments are a JSON string."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct):
    """One call."""

    function: CalledFunction
    id: str | None = None


class ChatMessage(msgspec.Struct):
    """What was said, taken apart by the server's parsers."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """One answer; which of the two fields holds its ids depends on the version."""

    message: ChatMessage
    finish_reason: str
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    response_token_ids: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()


class ChatUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = 0


class ChatAnswer(msgspec.Struct):
    """The answer of POST /v1/chat/completions."""

    choices: list[Choice]
    usage: ChatUsage


class Finish(msgspec.Struct):
    """Why a generation ended."""

    type: str


class Meta(msgspec.Struct):
    """What /generate says of a generation."""

    finish_reason: Finish
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = 0


class NativeAnswer(msgspec.Struct):
    """The answer of POST /generate."""

    text: str
    output_ids: msgspec.Raw
    meta_info: Meta


CHAT_DECODER = msgspec.json.Decoder(ChatAnswer)
NATIVE_DECODER = msgspec.json.Decoder(NativeAnswer)
