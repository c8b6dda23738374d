"""A row's list of messages, of any dialect, to turns in OpenAI form.

Enters: the value that `mapping.messages`, `mapping.turns` or `mapping.prompt` points at. Leaves:
messages with our four roles, checked for order, ending in a user or tool turn. It exists so that
an odd dialect is either understood or refused with a reason, and never guessed at.

Recorded assistant turns are generated anew, so only their place and the calls in them count:
trailing ones are dropped unread, and neighbours become one. Where a dataset gives the user's turns
alone, an empty assistant turn marks each place to answer at.
"""

from __future__ import annotations

import re
from typing import Any

from tasks.prompts.config import RowMapping
from tasks.prompts.record import Message, RowRefused
from tasks.prompts.text import clean_text, flatten_content
from tasks.prompts.tool_calls import read_calls, split_call_text, split_results

_ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "model": "assistant",
    "function_call": "assistant", "tool_call": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool",
    "tool_response": "tool", "function_response": "tool", "tool_result": "tool",
}  # fmt: skip
_CALL_ROLES = frozenset(("function_call", "tool_call"))
_ROLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def read_user_turns(value: object, what: str) -> list[Message]:
    """Turn a list of user texts into messages, with a place to answer after all but the last.

    Raises:
        RowRefused: if the value is no list of texts, or one is empty.
    """
    if not isinstance(value, list):
        raise RowRefused("not_text", f"{what} is {type(value).__name__}, not a list")
    messages: list[Message] = []
    for text in value:
        if messages:
            messages.append(_place_to_answer())
        messages.append({"role": "user", "content": flatten_content(text, "a turn")})
    return messages


def read_messages(value: object, mapping: RowMapping, *, hermes: bool) -> list[Message]:
    """Turn a list of messages, or a list of turns that are lists of messages, into ours.

    Args:
        value: What `mapping.messages` points at.
        mapping: Keys and roles of the dialect.
        hermes: Whether <tool_call> in an assistant's text is a call.

    Raises:
        RowRefused: for anything in it that is not understood.
    """
    raw = _drop_trailing_answers(_flatten_turns(value), mapping)
    messages: list[Message] = []
    for message in raw:
        if message is None:
            messages.append(_place_to_answer())
            continue
        role_name, role = _read_role(message, mapping)
        if role == "assistant":
            _append_answer(messages, _read_answer(message, role_name, mapping, hermes=hermes))
            continue
        content = message.get(mapping.content_key)
        if content is None:
            raise RowRefused("empty_turn", f"a {role} turn has no content")
        text = flatten_content(content, f"a {role} turn")
        if role == "tool":
            messages.extend(_read_results(message, text))
        elif role == "user" or text.strip():  # an empty system turn is the same as none
            messages.append({"role": role, "content": text})
    return messages


def check_order(messages: list[Message]) -> None:
    """Check that the template takes the turns and that each answer has its place.

    Raises:
        RowRefused: says which rule is broken.
    """
    if not any(message["role"] == "user" for message in messages):
        raise RowRefused("no_user_turn", "no user turn before the end")
    previous: Message = {"role": "start"}
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system" and index:
            raise RowRefused("system_not_first", f"a system turn at index {index}")
        if role != "assistant" and not message["content"].strip():
            raise RowRefused("empty_turn", f"the {role} turn at index {index} is empty")
        if role == "user" and previous["role"] == "user":
            raise RowRefused("consecutive_user_turns", f"two user turns at index {index}")
        if role == "assistant" and previous["role"] in ("start", "system"):
            raise RowRefused("no_user_turn", "an assistant turn before the first user turn")
        if role == "tool" and not (
            previous["role"] == "tool"
            or (previous["role"] == "assistant" and previous.get("tool_calls"))
        ):
            raise RowRefused("malformed_tool_call", f"a tool turn without a call at index {index}")
        previous = message


def _place_to_answer() -> Message:
    return {"role": "assistant", "content": ""}


def _flatten_turns(value: object) -> list[dict[str, Any] | None]:
    """Flatten a list of lists; None marks a place to answer between the user turns of two."""
    if not isinstance(value, list):
        raise RowRefused("not_text", f"messages are {type(value).__name__}, not a list")
    flat: list[dict[str, Any] | None] = []
    for turn in value:
        if isinstance(turn, list):
            if flat and turn:
                flat.append(None)
            parts = turn
        else:
            parts = [turn]
        for part in parts:
            if not isinstance(part, dict):
                raise RowRefused("not_text", f"a message is {type(part).__name__}, not an object")
            flat.append(part)
    return flat


def _drop_trailing_answers(
    raw: list[dict[str, Any] | None], mapping: RowMapping
) -> list[dict[str, Any] | None]:
    roles = [None if message is None else _read_role(message, mapping)[1] for message in raw]
    n_kept = len(raw)
    while n_kept and roles[n_kept - 1] in ("assistant", None):
        n_kept -= 1
    # Between two lists of turns an answer is wanted only where neither list holds it.
    return [
        message
        for index, message in enumerate(raw[:n_kept])
        if message is not None
        or (index and roles[index - 1] in ("user", "tool") and roles[index + 1] == "user")
    ]


def _read_role(message: dict[str, Any], mapping: RowMapping) -> tuple[str, str]:
    name = message.get(mapping.role_key)
    if not isinstance(name, str):
        raise RowRefused("unknown_role", f"a message has no {mapping.role_key}")
    role = mapping.role_map.get(name) or _ROLES.get(name.lower())
    if role is None:
        shown = name if _ROLE_NAME.fullmatch(name) else "(not a plain word)"
        raise RowRefused("unknown_role", f"role {shown}")
    return name, role


def _read_answer(
    message: dict[str, Any], role_name: str, mapping: RowMapping, *, hermes: bool
) -> Message:
    content = message.get(mapping.content_key)
    if role_name.lower() in _CALL_ROLES:
        return {"role": "assistant", "content": "", "tool_calls": read_calls(content)}
    text = "" if content is None else flatten_content(content, "an assistant turn")
    recorded = message.get("tool_calls")
    calls = read_calls(recorded) if recorded else []
    if hermes and not calls and "<tool_call>" in text:
        text, calls = split_call_text(text)
    if not calls and not text.strip():
        raise RowRefused("empty_turn", "an assistant turn is empty")
    answer: Message = {"role": "assistant", "content": text}
    return {**answer, "tool_calls": calls} if calls else answer


def _append_answer(messages: list[Message], answer: Message) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append(answer)
        return
    previous = messages.pop()
    calls = [*previous.get("tool_calls", ()), *answer.get("tool_calls", ())]
    text = "\n\n".join(part for part in (previous["content"], answer["content"]) if part)
    merged: Message = {"role": "assistant", "content": text}
    messages.append({**merged, "tool_calls": calls} if calls else merged)


def _read_results(message: dict[str, Any], text: str) -> list[Message]:
    name = message.get("name")
    named = {"name": clean_text(name, "a tool's name")} if name is not None else {}
    return [{"role": "tool", **named, "content": result} for result in split_results(text)]
