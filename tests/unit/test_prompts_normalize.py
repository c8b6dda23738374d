"""Each dialect is understood, and each oddity of rows is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.prompts.config import RowMapping, SourceConfig
from tasks.prompts.normalize import normalize_row
from tasks.prompts.record import NormalizedRow, Rejection, UnreadableRow, hash_prompt
from tests.support.prompts import REF, accepted, normalize, refusal_of

SHAREGPT = {"messages": "conversations", "role_key": "from", "content_key": "value"}


def sharegpt(*turns: tuple[str, object]) -> dict[str, object]:
    return {"conversations": [{"from": role, "value": text} for role, text in turns]}


def openai(*turns: tuple[str, object]) -> dict[str, object]:
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def test_sharegpt_turns_become_openai_turns_and_the_last_answer_is_dropped() -> None:
    row = sharegpt(
        ("system", "Be brief."), ("human", "Name a prime."), ("gpt", "2"), ("human", "Another."),
        ("gpt", "3"),
    )  # fmt: skip
    assert accepted(row, **SHAREGPT).messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a prime."},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "Another."},
    ]


def test_a_mapped_role_wins_over_the_usual_meaning() -> None:
    row = sharegpt(("narrator", "It rains."), ("human", "Where?"))
    assert refusal_of(row, **SHAREGPT) == "unknown_role"
    mapped = accepted(row, **SHAREGPT, role_map={"narrator": "system"})
    assert mapped.messages[0] == {"role": "system", "content": "It rains."}


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ([{"input": "2, 4, 8"}], "What comes next?\n\n2, 4, 8"),
        ([{"input": ""}], "What comes next?"),
        ([], "What comes next?"),
    ],
)
def test_an_instruction_is_joined_with_a_second_text_that_is_not_empty(
    instances: list[object], text: str
) -> None:
    row = {"instruction": "What comes next?", "instances": instances}
    result = accepted(row, prompt="instruction", input="instances.0.input")
    assert result.messages == [{"role": "user", "content": text}]


def test_row_text_is_never_read_as_a_join_template() -> None:
    row = {"q": "What does {input} or {0.__class__} mean?", "i": "{prompt}"}
    result = accepted(row, prompt="q", input="i", join="{input}|{prompt}")
    assert result.messages[0]["content"] == "{prompt}|What does {input} or {0.__class__} mean?"


def test_a_list_of_user_turns_leaves_a_place_to_answer_between_them() -> None:
    row = {"turns": ["Write a haiku.", "Now in French.", "And rhyme it."]}
    roles = [message["role"] for message in accepted(row, turns="turns").messages]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


def test_turns_that_are_lists_of_messages_are_flattened() -> None:
    one = [{"role": "user", "content": "Book a desk."}]
    two = [{"role": "user", "content": "Cancel it."}]
    answered = [*one, {"role": "assistant", "content": "Booked."}]
    assert accepted({"question": [one]}, messages="question").messages == one
    for turns in ([one, two], [answered, two]):
        roles = [m["role"] for m in accepted({"question": turns}, messages="question").messages]
        assert roles == ["user", "assistant", "user"]
    assert refusal_of({"question": [*one, *two]}, messages="question") == "consecutive_user_turns"


def test_text_parts_are_joined_and_images_are_refused() -> None:
    parts: list[dict[str, str]] = [{"type": "text", "text": "Two "}, {"text": "parts."}]
    row = openai(("user", parts))
    assert accepted(row, messages="messages").messages[0]["content"] == "Two parts."
    for media in ({"type": "image_url", "image_url": "x"}, {"image": "x"}, {"type": "audio"}):
        row = openai(("user", [*parts, media]))
        assert refusal_of(row, messages="messages") == "image"


@pytest.mark.parametrize(
    ("turns", "kind"),
    [
        ((("user", ""),), "empty_turn"),
        ((("user", " \n\t"),), "empty_turn"),
        ((("user", None),), "empty_turn"),
        ((("user", "a"), ("assistant", ""), ("user", "b")), "empty_turn"),
        ((("user", "a"), ("user", "b")), "consecutive_user_turns"),
        ((("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d")), "system_not_first"),
        ((("system", "a"), ("system", "b"), ("user", "c")), "system_not_first"),
        ((("assistant", "Hello."), ("user", "Hi.")), "no_user_turn"),
        ((("system", "a"),), "no_user_turn"),
        ((("assistant", "a"),), "no_user_turn"),
        ((), "no_user_turn"),
        ((("user", "a"), ("tool", "b")), "malformed_tool_call"),
        ((("user", 7),), "not_text"),
        ((("user", "nul \x00"),), "not_text"),
        ((("user", "half \ud83d"),), "not_text"),
        ((("User ", "a"),), "unknown_role"),
        (((None, "a"),), "unknown_role"),
    ],
)
def test_an_odd_conversation_is_refused_by_its_name(turns: Any, kind: str) -> None:
    assert refusal_of(openai(*turns), messages="messages") == kind


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ([], "not_an_object"),
        (None, "not_an_object"),
        ({}, "path_missing"),
        ({"messages": None}, "path_missing"),
        ({"messages": "hello"}, "not_text"),
        ({"messages": ["hello"]}, "not_text"),
        (UnreadableRow("row_too_large", "a long line"), "row_too_large"),
    ],
)
def test_what_is_no_conversation_is_refused_by_its_name(row: object, kind: str) -> None:
    assert refusal_of(row, messages="messages") == kind


def test_an_empty_system_turn_is_the_same_as_none() -> None:
    row = openai(("system", " "), ("user", "Hello?"))
    assert accepted(row, messages="messages").messages == [{"role": "user", "content": "Hello?"}]


def test_only_line_ends_of_a_text_are_changed() -> None:
    text = "  cafe\u0301 \r\n\ttab\r end  "
    kept = accepted({"q": text}, prompt="q").messages[0]["content"]
    assert kept == "  cafe\u0301 \n\ttab\n end  "


def test_rows_that_differ_in_what_is_generated_anew_are_one_prompt() -> None:
    def identify(*turns: tuple[str, object]) -> str:
        row = accepted(openai(*turns), messages="messages")
        return hash_prompt(row.messages, row.tools)

    one = identify(("user", "caf\u00e9?"), ("assistant", "Yes."), ("user", "Why?"))
    other = identify(("user", " cafe\u0301?\n"), ("assistant", "No."), ("user", "Why?"))
    assert one == other
    assert one != identify(("user", "cafe?"), ("assistant", "Yes."), ("user", "Why?"))
    assert one != identify(("user", "caf\u00e9?"))
    assert one != identify(("system", "x"), ("user", "caf\u00e9?"), ("assistant", "Yes."),
                           ("user", "Why?"))  # fmt: skip


def test_label_language_and_own_id_are_read() -> None:
    row = {"q": "Warum?", "label": {"kinds": ["a", 3, "b"]}, "lang": "ZH_cn", "id": 17}
    result = accepted(row, prompt="q", label="label.kinds", language="lang", id="id")
    assert (result.labels, result.language, result.own_id) == (("a", "b"), "zh", "17")
    for text in ("a sentence, not an id", "x" * 300, "\x1b[31m", None, 1 << 90):
        assert accepted({"q": "Warum?", "id": text}, prompt="q", id="id").own_id is None


def test_a_refusal_never_holds_the_rows_text() -> None:
    secret = "a private sentence about my neighbour"
    rows = [
        openai((secret, "x")),
        openai(("user", {"type": secret})),
        openai(("user", [secret, 4])),
        {"messages": [{"role": "user", "content": "x"}], "tools": secret},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": None,
                      "tool_calls": secret}, {"role": "user", "content": "y"}]},
    ]  # fmt: skip
    for row in rows:
        result = normalize(row, messages="messages", tools="tools")
        assert isinstance(result, Rejection)
        assert secret not in result.detail


JSON_LIKE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(["user", "human", "tool", "<tool_call>{'a'", "null", "[]", "\ud800", "\x00"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "from",
                    "value",
                    "tools",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "type",
                    "text",
                ]
            )
            | st.text(st.characters(), max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.data())
def test_a_corrupted_row_is_a_prompt_or_a_refusal_and_never_a_crash(data: st.DataObject) -> None:
    call = {"function": {"name": "f", "arguments": data.draw(JSON_LIKE)}}
    row: Any = {
        "messages": [
            {"role": "user", "content": "Call it."},
            {"role": "assistant", "content": data.draw(JSON_LIKE), "tool_calls": [call]},
            {"role": "tool", "content": "done"},
        ],
        "tools": [{"name": "f", "parameters": {"x": {"type": "int"}}}],
        "label": data.draw(JSON_LIKE),
    }
    target = row
    path = data.draw(st.lists(st.integers(0, 3), max_size=4))
    for step in path:
        keys = list(target) if isinstance(target, dict) else list(range(len(target)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(target[key], dict | list) or not target[key]:
            target[key] = data.draw(JSON_LIKE)
            break
        target = target[key]
    mapping = RowMapping(messages="messages", tools="tools", label="label", tools_in_system=True)
    config = SourceConfig(path="x.jsonl", mapping=mapping)
    result = normalize_row(row, REF, config)
    if isinstance(result, NormalizedRow):
        encoded = json.dumps(result.messages, ensure_ascii=False).encode()
        assert b"\\u0000" not in encoded
        assert result.messages[-1]["role"] in {"user", "tool"}
        assert len(hash_prompt(result.messages, result.tools)) == 32
