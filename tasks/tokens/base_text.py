"""A base dataset of conversations without ids: its last turns re-tokenised, and what is refused.

Enters: conversations in OpenAI form as lists or JSON strings, tools. Leaves: BaseRows with ids and
masks made of text. Rows that cannot be re-tokenised are counted by why. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from tasks.chat.parse import split_reasoning
from tasks.chat.template import ChatTemplate, Message
from tasks.tokens.base_columns import BaseRows, RowNames
from tasks.tokens.retokenize import AnswerText, NotRetokenizable, retokenize

_THINK_START = "<think>"


def retokenize_rows(
    names: RowNames,
    conversations: Sequence[Any],
    tools: Sequence[Any],
    *,
    thinking: bool,
    template: ChatTemplate,
    refused: Counter[str],
) -> BaseRows:
    """Make ids and masks of each conversation's last assistant turn.

    Args:
        names: Of all rows.
        conversations: One a row: messages in OpenAI form, as a list or a JSON string.
        tools: One a row: a JSON string, a list, or None.
        thinking: Whether the target thinks.
        template: The target's.
        refused: Counts the rows left out, by why.
    """
    kept: list[int] = []
    made: list[tuple[list[int], list[int]]] = []
    for index, (conversation, row_tools) in enumerate(zip(conversations, tools, strict=True)):
        try:
            messages, answer = _split(conversation)
            made.append(
                retokenize(
                    messages, _to_json(row_tools), answer, thinking=thinking, template=template
                )
            )
        except NotRetokenizable as error:
            refused[error.reason] += 1
        else:
            kept.append(index)
    lengths = np.array([len(side) for row in made for side in row], dtype=np.int64)
    flat = np.array([token for row in made for side in row for token in side], dtype=np.int64)
    mask = np.repeat(np.tile(np.array([0, 1], dtype=np.int8), len(made)), lengths)
    n_ids = lengths[::2] + lengths[1::2]
    survivors = RowNames(
        names.where,
        names.first,
        *([column[i] for i in kept] for column in (names.ids, names.sources, names.domains)),
    )
    return BaseRows(survivors, flat, n_ids, mask, n_ids)


def _split(conversation: Any) -> tuple[list[Message], AnswerText]:
    """Part a conversation into what was asked and its last answer."""
    try:
        turns = orjson.loads(conversation) if isinstance(conversation, str) else conversation
        # Arrow unifies the fields of all messages, and fills what a message has not with nulls.
        messages = [{k: v for k, v in dict(turn).items() if v is not None} for turn in turns]
    except (TypeError, ValueError) as error:
        raise NotRetokenizable("the conversation is no list of messages") from error
    if len(messages) < 2 or messages[-1].get("role") != "assistant":
        raise NotRetokenizable("the conversation does not end in an answer")
    *asked, last = messages
    content, reasoning = last.get("content", ""), last.get("reasoning_content", "")
    if not isinstance(content, str) or not isinstance(reasoning, str):
        raise NotRetokenizable("the answer is no text")
    if content.startswith(_THINK_START) and not reasoning:
        reasoning, content = split_reasoning(content, thinking=True)
        reasoning = reasoning.removeprefix("\n")
    return asked, AnswerText(content, reasoning, _read_calls(last))


def _read_calls(message: Message) -> list[Message]:
    """Read tool calls; arguments that are a JSON string become the object that templates take."""
    calls: list[Message] = []
    try:
        for call in message.get("tool_calls") or ():
            function = dict(call["function"])
            if isinstance(function["arguments"], str):
                function["arguments"] = orjson.loads(function["arguments"])
            calls.append({**call, "function": function})
    except (KeyError, TypeError, ValueError) as error:
        raise NotRetokenizable("a tool call is malformed") from error
    return calls


def _to_json(tools: Any) -> str | None:
    return tools if tools is None or isinstance(tools, str) else orjson.dumps(tools).decode()
