"""The records of this room: Completion (one generation) and Outcome (one conversation).

Token ids stay unparsed JSON bytes (`msgspec.Raw`) from the server's answer to the stored part:
parsing 2,700 ids an answer would double the client's cost, and only assembly needs them. Records
are Structs, because a frozen dataclass of as many fields takes four times as long to make.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tasks.prompts.record import Message

TokenSource = Literal["chat", "native", "retokenized"]
Status = Literal["completed", "truncated", "partial", "failed"]
FailureKind = Literal[
    "bad_request",
    "server_error",
    "disconnected",
    "deadline",
    "aborted",
    "rate_limited",
    "malformed_answer",
    "context_exceeded",
    "tool_mismatch",
]


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the server tells them."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int


class Completion(msgspec.Struct, frozen=True):
    """One generation: the `generation`-th turn that the target itself wrote.

    Attributes:
        messages: What the request held: history in OpenAI form. Shape [n_messages].
        content: The answer after thinking; may be empty, never None.
        reasoning: The thinking; may be empty, never None.
        tool_calls: Calls in OpenAI form with `arguments` a dict, in order; empty if none.
        text: The raw text as sampled (native route), else None.
        prompt_token_ids: JSON array of ids, unparsed. Shape [n_prompt_tokens].
        output_token_ids: JSON array of ids with the end token, unparsed. Shape [n_output_tokens].
        finish_reason: The server's: stop, length or tool_calls.
        attempts: Requests that counted, the answered one too.
        latency_seconds: Of the answered request alone.
        ended_at: When it was answered, in Unix seconds; 0 in parts of old that do not say it.
        retried: Why each earlier request for this turn failed, those that counted for nothing too.
    """

    prompt_id: str
    sample: int
    generation: int
    messages: list[Message]
    content: str
    reasoning: str
    tool_calls: list[Message]
    text: str | None
    prompt_token_ids: msgspec.Raw
    output_token_ids: msgspec.Raw
    token_source: TokenSource
    finish_reason: str
    usage: Usage
    endpoint: str
    attempts: int
    latency_seconds: float
    ended_at: float = 0.0
    retried: list[FailureKind] = []


class Failure(msgspec.Struct, frozen=True):
    """Why a conversation ended early; `message` never holds prompt text."""

    kind: FailureKind
    message: str
    retryable: bool
    attempts: int
    endpoints: list[str]


class Outcome(msgspec.Struct, frozen=True):
    """How one conversation (prompt, sample) ended.

    completed: every turn generated. truncated: the last one was cut at max_tokens.
    partial: some turns, then a failure or a recorded tool result that does not fit.
    failed: no turn at all. `attempt` names the journal and start that made all its turns.
    """

    prompt_id: str
    sample: int
    status: Status
    completions: list[Completion]
    failure: Failure | None
    attempt: str

    @property
    def terminal(self) -> bool:
        """Whether no later outcome may replace it."""
        return self.failure is None or not self.failure.retryable


# A row of a journal or a part, back to its record; made once, since making it costs.
decode_outcome = msgspec.json.Decoder(Outcome).decode
