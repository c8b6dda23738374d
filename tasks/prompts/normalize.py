"""A source row to a conversation in OpenAI form, or to a Rejection; pure.

Enters: a row of any dataset, where it stands, and the mapping of its source. Leaves: a
NormalizedRow (see `record`), or a Rejection that says why and never holds the row's text. It exists
as the one place that knows datasets' dialects; nothing after it sees another form than ours.

A row is untrusted: whatever it holds, a Rejection is the worst that comes of it.
"""

from __future__ import annotations

import re

from tasks.prompts.config import RowMapping, SourceConfig
from tasks.prompts.record import (
    Message,
    NormalizedRow,
    Rejection,
    RowRefused,
    SourceRef,
    UnreadableRow,
)
from tasks.prompts.row_paths import MISSING, lookup
from tasks.prompts.text import clean_text
from tasks.prompts.tool_calls import take_tool_list
from tasks.prompts.tool_schemas import normalize_tools
from tasks.prompts.turns import check_order, read_messages, read_user_turns

# An id goes into the file of rejections, where no text of a row may stand.
_OWN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,200}")


def normalize_row(row: object, ref: SourceRef, config: SourceConfig) -> NormalizedRow | Rejection:
    """Read a row by its source's mapping.

    Args:
        row: What the reader gave: a dict, an UnreadableRow, or anything at all.
        ref: Where the row stands.
        config: The completed configuration of its source (with a mapping).
    """
    try:
        return read_row(row, config.mapping)
    except RowRefused as refusal:
        return Rejection(refusal.kind, refusal.detail, ref)


def read_row(row: object, mapping: RowMapping | None) -> NormalizedRow:
    """Read a row by a mapping.

    Raises:
        RowRefused: It is no conversation, or one that cannot be answered.
        ValueError: There is no mapping: complete_source comes first.
    """
    if mapping is None:
        raise ValueError("the source has no mapping: complete_source comes first")
    if isinstance(row, UnreadableRow):
        raise RowRefused(row.kind, row.detail)
    if not isinstance(row, dict):
        raise RowRefused("not_an_object", f"the row is {type(row).__name__}")
    tools = None
    if mapping.tools is not None:
        given = lookup(row, mapping.tools)
        tools = None if given is MISSING else normalize_tools(given)
    messages, reference = _read_turns(row, mapping, has_tools=tools is not None)
    if mapping.tools_in_system and messages and messages[0]["role"] == "system":
        system, listed = take_tool_list(messages[0]["content"])
        if listed is not None and tools is None:
            tools = normalize_tools(listed)
        messages = (
            [{"role": "system", "content": system}, *messages[1:]] if system else messages[1:]
        )
    if check_order(messages) and tools is None:
        raise RowRefused("malformed_tools", "calls are recorded, but no tools are given")
    return NormalizedRow(
        messages,
        tools,
        () if mapping.label is None else _read_labels(row, mapping.label),
        None if mapping.language is None else _read_language(row, mapping.language),
        None if mapping.id is None else _read_own_id(row, mapping.id),
        reference if mapping.reference is None else _read_reference(row, mapping.reference),
    )


def _read_turns(
    row: dict[str, object], mapping: RowMapping, *, has_tools: bool
) -> tuple[list[Message], str | None]:
    reference: str | None = None
    if mapping.messages is not None:
        messages, reference = read_messages(
            _get(row, mapping.messages), mapping, hermes=mapping.tools_in_system or has_tools
        )
    elif mapping.turns is not None:
        messages = read_user_turns(_get(row, mapping.turns), mapping.turns)
    else:
        messages = [{"role": "user", "content": _read_prompt(row, mapping)}]
    system = "" if mapping.system is None else _read_optional(row, mapping.system)
    return ([{"role": "system", "content": system}, *messages] if system else messages), reference


def _read_prompt(row: dict[str, object], mapping: RowMapping) -> str:
    path = mapping.prompt or ""
    prompt = clean_text(_get(row, path), path)
    second = "" if mapping.input is None else _read_optional(row, mapping.input)
    if not prompt.strip():
        raise RowRefused("empty_turn", f"{path} is empty")
    return mapping.join.format(prompt=prompt, input=second) if second else prompt


def _get(row: dict[str, object], path: str) -> object:
    value = lookup(row, path)
    if value is MISSING or value is None:
        raise RowRefused("path_missing", f"no {path} in the row")
    return value


def _read_optional(row: dict[str, object], path: str) -> str:
    value = lookup(row, path)
    if value is MISSING or value is None:
        return ""
    text = clean_text(value, path)
    return text if text.strip() else ""


def _read_reference(row: dict[str, object], path: str) -> str | None:
    value = lookup(row, path)
    if not isinstance(value, str):
        return None
    try:
        return clean_text(value, path) or None
    except RowRefused:  # an answer that is no text is no reference; the prompt is sound
        return None


def _read_labels(row: dict[str, object], path: str) -> tuple[str, ...]:
    value = lookup(row, path)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        return ()
    return tuple([label for label in value if isinstance(label, str)])


def _read_language(row: dict[str, object], path: str) -> str | None:
    value = lookup(row, path)
    if not isinstance(value, str):
        return None
    # `en-US`, `zh_cn` and `EN` are the codes that datasets write.
    return value.strip().lower().replace("_", "-").partition("-")[0] or None


def _read_own_id(row: dict[str, object], path: str) -> str | None:
    value = lookup(row, path)
    if isinstance(value, str):
        return value if _OWN_ID.fullmatch(value) else None
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else None
    return None
