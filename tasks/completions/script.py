"""How a recorded conversation is acted out anew: what is said next, once the model has spoken.

Enters: a prompt's messages, with the recorded assistant and tool turns. Leaves: after each
generated turn, the history for the next one, or how the conversation ended. Pure. The recorded
assistant turns are never shown to the model: it goes on from its own. Tools are not executed: after
the k-th regenerated call the k-th recorded result follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tasks.prompts.record import Message

Next = Literal["generate", "completed", "truncated", "tool_mismatch"]


@dataclass(slots=True)
class _Exchange:
    """A user's turn and the tool results recorded after it, each with its call's name."""

    opening: list[Message]
    results: list[tuple[str | None, Message]] = field(default_factory=list)


class Script:
    """The state of one conversation; `history` is what the next request holds."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """Split the recorded messages at their user turns."""
        self._exchanges = _split(messages)
        self._at = 0
        self._n_results = 0
        self.history: list[Message] = list(self._exchanges[0].opening)

    def accept(
        self, content: str, reasoning: str, tool_calls: Sequence[Message], finish_reason: str
    ) -> Next:
        """Take the turn that the model generated, and say what follows.

        generate: `history` has grown; ask for the next turn. tool_mismatch: a recorded result was
        due that does not fit, because of a parallel call, another name, or a call too many.
        """
        if finish_reason == "length":
            return "truncated"
        exchange = self._exchanges[self._at]
        is_last = self._at == len(self._exchanges) - 1
        left = exchange.results[self._n_results :]
        if tool_calls and left:
            return self._replay(left[0], content, reasoning, tool_calls)
        if is_last:
            return "completed"
        if tool_calls:
            return "tool_mismatch"
        self._open_next(content)
        return "generate"

    def _replay(
        self,
        recorded: tuple[str | None, Message],
        content: str,
        reasoning: str,
        tool_calls: Sequence[Message],
    ) -> Next:
        name, result = recorded
        call = tool_calls[0]
        if len(tool_calls) > 1 or (name is not None and call["function"]["name"] != name):
            return "tool_mismatch"
        turn: Message = {"role": "assistant", "content": content, "tool_calls": [call]}
        if reasoning:
            # Inside a tool loop the model sees why it made the call.
            turn["reasoning_content"] = reasoning
        answer = {**result, "tool_call_id": call["id"]} if call.get("id") else dict(result)
        self.history = [*self.history, turn, answer]
        self._n_results += 1
        return "generate"

    def _open_next(self, content: str) -> None:
        self._at += 1
        self._n_results = 0
        kept = [_without_reasoning(message) for message in self.history]
        turn: Message = {"role": "assistant", "content": content}
        self.history = [*kept, turn, *self._exchanges[self._at].opening]


def _split(messages: Sequence[Message]) -> list[_Exchange]:
    first = 0
    while messages[first]["role"] != "user":
        first += 1
    exchanges = [_Exchange(list(messages[: first + 1]))]
    names: list[str | None] = []
    for message in messages[first + 1 :]:
        match message["role"]:
            case "assistant":
                names += [call["function"]["name"] for call in message.get("tool_calls") or ()]
            case "tool":
                name = names.pop(0) if names else message.get("name")
                exchanges[-1].results.append((name, message))
            case _:
                exchanges.append(_Exchange([message]))
                names = []
    return exchanges


def _without_reasoning(message: Message) -> Message:
    if "reasoning_content" not in message:
        return message
    return {key: value for key, value in message.items() if key != "reasoning_content"}
