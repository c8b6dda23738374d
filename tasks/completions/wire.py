"""The two routes to exact ids, as bytes: what a request says, what an answer holds.

Enters: the plan's parameters and one turn, or the bytes of a server's answer. Leaves: a JSON body,
or an Answer. Chat completions with `return_token_ids` (SGLang 0.5.23) render and parse at the
server; `/generate` with `input_ids` (0.5.12) is rendered and parsed here. It exists so that ids
are never parsed: they stay `msgspec.Raw` from the answer to the stored part.
Source: answers recorded from real servers of both versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, cast

import msgspec

from tasks.chat.parse import parse_answer
from tasks.completions.record import TokenSource, Usage
from tasks.completions.shapes import CHAT_DECODER, NATIVE_DECODER, ToolCall
from tasks.prompts.record import Message, Plan

# Every one is sent, because a server's defaults differ by route and come from the model's files.
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


class RequestFailed(Exception):
    """A request gave no answer; the subclasses say why. The text never holds prompt text."""


class MalformedAnswer(RequestFailed):
    """The server said 200 and sent something that is no answer."""


class AnswerAborted(RequestFailed):
    """The generation was aborted at the server: 200, but no success."""


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What every request of a plan shares."""

    sampling: dict[str, float | int]
    thinking: bool
    reasoning_parser: Literal["qwen3"] | None
    tool_call_parser: Literal["qwen3_coder"] | None

    @classmethod
    def from_plan(cls, plan: Plan) -> Self:
        """Take the parameters from the plan.

        Raises:
            KeyError: a sampling parameter is missing.
        """
        return cls(
            sampling={name: plan.sampling[name] for name in _SAMPLING_FIELDS},
            thinking=plan.thinking,
            reasoning_parser=cast("Literal['qwen3'] | None", plan.reasoning_parser),
            tool_call_parser=cast("Literal['qwen3_coder'] | None", plan.tool_call_parser),
        )


class TurnRequest(msgspec.Struct, frozen=True):
    """One turn to generate.

    Attributes:
        messages: The history, in OpenAI form. Shape [n_messages].
        tools: JSON-schema tools as one JSON string, or None.
        prompt_token_ids: The history as rendered here, a JSON array. Shape [n_prompt_tokens].
        max_tokens: Longest answer that fits.
        chat_max_tokens: The same where the server renders, which may take more tokens.
    """

    messages: list[Message]
    tools: str | None
    prompt_token_ids: msgspec.Raw
    n_prompt_tokens: int
    max_tokens: int
    chat_max_tokens: int


class Answer(msgspec.Struct, frozen=True):
    """One generated turn; the fields are those of a Completion."""

    content: str
    reasoning: str
    tool_calls: list[Message]
    text: str | None
    prompt_token_ids: msgspec.Raw
    output_token_ids: msgspec.Raw
    token_source: TokenSource
    finish_reason: str
    usage: Usage


def encode_chat(params: GenerationParams, request: TurnRequest, *, rid: str, model: str) -> bytes:
    """Write the body of POST /v1/chat/completions."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_write_message(message) for message in request.messages],
        "max_tokens": request.chat_max_tokens,
        **params.sampling,
        "n": 1,
        "stream": False,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "separate_reasoning": True,
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": params.thinking},
        "rid": rid,
    }
    if request.tools is not None:
        body["tools"] = msgspec.Raw(request.tools.encode())
        body["tool_choice"] = "auto"
    return msgspec.json.encode(body)


def encode_native(params: GenerationParams, request: TurnRequest, *, rid: str, model: str) -> bytes:
    """Write the body of POST /generate; the model is the server's only one and has no field.

    Special tokens stay in the text, without spaces beside them, so that `</think>` and tool calls
    can be found; the matched end token is trimmed by the server.
    """
    del model
    sampling = {
        "max_new_tokens": request.max_tokens,
        **params.sampling,
        "n": 1,
        "ignore_eos": False,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": False,
    }
    body = {
        "input_ids": request.prompt_token_ids,
        "sampling_params": sampling,
        "stream": False,
        "rid": rid,
    }
    return msgspec.json.encode(body)


def read_chat(content: bytes) -> Answer:
    """Read the answer of the chat route.

    Raises:
        MalformedAnswer: no choice, no ids, or tool arguments that are no object.
        AnswerAborted: the finish reason says so.
        msgspec.MsgspecError: the bytes are not such an answer.
    """
    decoded = CHAT_DECODER.decode(content)
    if len(decoded.choices) != 1:
        raise MalformedAnswer(f"{len(decoded.choices)} choices")
    choice = decoded.choices[0]
    _check_finish(choice.finish_reason)
    message, usage = choice.message, decoded.usage
    return Answer(
        content=message.content or "",
        reasoning=message.reasoning_content or "",
        tool_calls=[_read_call(call) for call in message.tool_calls or ()],
        text=None,
        prompt_token_ids=_check_ids(choice.prompt_token_ids, "prompt_token_ids"),
        output_token_ids=_check_ids(
            choice.response_token_ids if bytes(choice.response_token_ids) else choice.token_ids,
            "response_token_ids",
        ),
        token_source="chat",  # noqa: S106  # a route, no secret
        finish_reason=choice.finish_reason,
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens or 0),
    )


def read_native(content: bytes, params: GenerationParams, request: TurnRequest) -> Answer:
    """Read the answer of /generate and split its text as the server's own parsers would.

    Raises:
        MalformedAnswer: no ids, or the server saw another prompt than was sent.
        AnswerAborted: the finish reason says so.
        msgspec.MsgspecError: the bytes are not such an answer.
    """
    decoded = NATIVE_DECODER.decode(content)
    meta = decoded.meta_info
    _check_finish(meta.finish_reason.type)
    if meta.prompt_tokens != request.n_prompt_tokens:
        raise MalformedAnswer(f"{meta.prompt_tokens} prompt tokens, sent {request.n_prompt_tokens}")
    parsed = parse_answer(
        decoded.text,
        thinking=params.thinking,
        reasoning_parser=params.reasoning_parser,
        tool_call_parser=params.tool_call_parser,
        tools=request.tools,
    )
    finish = meta.finish_reason.type
    return Answer(
        content=parsed.content,
        reasoning=parsed.reasoning,
        tool_calls=parsed.tool_calls,
        text=decoded.text,
        prompt_token_ids=request.prompt_token_ids,
        output_token_ids=_check_ids(decoded.output_ids, "output_ids"),
        token_source="native",  # noqa: S106
        finish_reason="tool_calls" if parsed.tool_calls and finish == "stop" else finish,
        usage=Usage(meta.prompt_tokens, meta.completion_tokens, meta.reasoning_tokens or 0),
    )


def _write_message(message: Message) -> Message:
    """Put a message in the wire's form, where a call's arguments are a JSON string."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    written = []
    for call in calls:
        arguments = msgspec.json.encode(call["function"]["arguments"]).decode()
        written.append({**call, "function": {**call["function"], "arguments": arguments}})
    return {**message, "tool_calls": written}


def _read_call(call: ToolCall) -> Message:
    arguments = msgspec.json.decode(call.function.arguments)
    if not isinstance(arguments, dict):
        raise MalformedAnswer("tool arguments are no object")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _check_finish(reason: str) -> None:
    if reason == "abort":
        raise AnswerAborted("finish_reason abort")
    if reason not in {"stop", "length", "tool_calls"}:
        raise MalformedAnswer("unknown finish_reason")


def _check_ids(ids: msgspec.Raw, name: str) -> msgspec.Raw:
    """Refuse what is no array of ids, by its first bytes; assembly parses and checks the rest."""
    start = bytes(memoryview(ids)[:2])
    if start[:1] != b"[" or start == b"[]":
        raise MalformedAnswer(f"no {name}")
    # A Raw points into the whole answer; the copy lets the rest of it go.
    return ids.copy()
