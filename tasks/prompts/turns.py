"""A row's list of messages, of any dialect, to turns in OpenAI form.

Enters: the value that `mapping.messages`, `mapping.turns` or `mapping.prompt` points at. Leaves:
messages with our four roles, checked for order, ending in a user or tool turn. It exists so that
an odd dialect is either understood or refused with a reason, and never guessed at.

Recorded assistant turns are generated anew, so only their place and the calls in them count:
trailing ones are dropped, the last kept aside as reference, and neighbours become one. Where a
dataset gives the user's turns alone, an empty assistant turn marks each place to answer at.
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
_DROPPED_AT_END = frozenset(("assistant", None))
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


def read_messages(
    value: object, mapping: RowMapping, *, hermes: bool
) -> tuple[list[Message], str | None]:
    """Turn a list of messages, or a list of turns that are lists of messages, into ours.

    Args:
        value: What `mapping.messages` points at.
        mapping: Keys and roles of the dialect.
        hermes: Whether <tool_call> in an assistant's text is a call.

    Returns:
        The messages, and the text of the last answer, which was dropped; None if there was none.

    Raises:
        RowRefused: for anything in it that is not understood.
    """
    raw, roles = _read_roles(_flatten_turns(value), mapping)
    n_kept = len(raw)
    while n_kept and roles[n_kept - 1] in _DROPPED_AT_END:
        n_kept -= 1
    reference = _read_reference(raw[n_kept:], mapping) if n_kept < len(raw) else None
    messages: list[Message] = []
    for index in range(n_kept):
        message, role = raw[index], roles[index]
        if message is None or role is None:
            # Between two lists of turns an answer is wanted only where neither list holds it.
            if index and roles[index - 1] in ("user", "tool") and roles[index + 1] == "user":
                messages.append(_place_to_answer())
            continue
        if role == "assistant":
            name = message[mapping.role_key]
            _append_answer(messages, _read_answer(message, name, mapping, hermes=hermes))
            continue
        content = message.get(mapping.content_key)
        if content is None:
            raise RowRefused("empty_turn", f"a {role} turn has no content")
        text = flatten_content(content, f"a {role} turn")
        if role == "tool":
            messages.extend(_read_results(message, text))
        elif role == "user" or text.strip():  # an empty system turn is the same as none
            messages.append({"role": role, "content": text})
    return messages, reference


def check_order(messages: list[Message]) -> bool:
    """Check that the template takes the turns and that each answer has its place.

    Returns:
        Whether an answer among them has calls.

    Raises:
        RowRefused: says which rule is broken.
    """
    previous = "start"
    has_calls = has_user = any_calls = False
    fault: RowRefused | None = None
    for index, message in enumerate(messages):
        role = message["role"]
        has_user = has_user or role == "user"
        fault = fault or _judge_turn(message, role, previous, index, has_calls=has_calls)
        if role != "tool":
            has_calls = "tool_calls" in message
            any_calls = any_calls or has_calls
        previous = role
    if not has_user:
        raise RowRefused("no_user_turn", "no user turn before the end")
    if fault is not None:
        raise fault
    return any_calls


def _judge_turn(
    message: Message, role: str, previous: str, index: int, *, has_calls: bool
) -> RowRefused | None:
    """Judge a turn by the one before it; `has_calls` is of the last turn that is no tool's."""
    if role == "system":
        if index:
            return RowRefused("system_not_first", f"a system turn at index {index}")
    elif role == "assistant":
        if previous in ("start", "system"):
            return RowRefused("no_user_turn", "an assistant turn before the first user turn")
        return None
    text = message["content"]
    if not text or text.isspace():
        return RowRefused("empty_turn", f"the {role} turn at index {index} is empty")
    if role == "user":
        if previous == "user":
            return RowRefused("consecutive_user_turns", f"two user turns at index {index}")
    elif role == "tool" and not (previous in ("tool", "assistant") and has_calls):
        return RowRefused("malformed_tool_call", f"a tool turn without a call at index {index}")
    return None


def _place_to_answer() -> Message:
    return {"role": "assistant", "content": ""}


def _flatten_turns(value: object) -> list[dict[str, Any] | None]:
    """Flatten a list of lists; None marks a place to answer between the user turns of two."""
    if not isinstance(value, list):
        raise RowRefused("not_text", f"messages are {type(value).__name__}, not a list")
    flat: list[dict[str, Any] | None] = []
    for turn in value:
        if isinstance(turn, dict):
            flat.append(turn)
            continue
        if not isinstance(turn, list):
            raise RowRefused("not_text", f"a message is {type(turn).__name__}, not an object")
        if flat and turn:
            flat.append(None)
        for part in turn:
            if not isinstance(part, dict):
                raise RowRefused("not_text", f"a message is {type(part).__name__}, not an object")
            flat.append(part)
    return flat


def _read_roles(
    raw: list[dict[str, Any] | None], mapping: RowMapping
) -> tuple[list[dict[str, Any] | None], list[str | None]]:
    role_key, role_map = mapping.role_key, mapping.role_map
    roles: list[str | None] = []
    for message in raw:
        if message is None:
            roles.append(None)
            continue
        name = message.get(role_key)
        if not isinstance(name, str):
            raise RowRefused("unknown_role", f"a message has no {role_key}")
        role = role_map.get(name) or _ROLES.get(name) or _ROLES.get(name.lower())
        if role is None:
            shown = name if _ROLE_NAME.fullmatch(name) else "(not a plain word)"
            raise RowRefused("unknown_role", f"role {shown}")
        roles.append(role)
    return raw, roles


def _read_reference(dropped: list[dict[str, Any] | None], mapping: RowMapping) -> str | None:
    """Read the last answer that was dropped; one that is no text is no reference."""
    for message in reversed(dropped):
        content = None if message is None else message.get(mapping.content_key)
        if content is not None:
            try:
                return flatten_content(content, "the last answer") or None
            except RowRefused:
                return None
    return None


def _read_answer(
    message: dict[str, Any], role_name: str, mapping: RowMapping, *, hermes: bool
) -> Message:
    content = message.get(mapping.content_key)
    if role_name in _CALL_ROLES or role_name.lower() in _CALL_ROLES:
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
