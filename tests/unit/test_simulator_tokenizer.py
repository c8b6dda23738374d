"""The shipped model folder: rebuilt byte for byte, and read alike by transformers and by us."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoTokenizer

from infra.simulator.tokenizer import MODEL_DIR, ChatTokenizer
from infra.simulator.train_tokenizer import VOCAB_SIZE, build_files

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "天气, <b>'é'</b>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = {
    "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3, "x": [1, None]}}
}
USER = {"role": "user", "content": " Weather in Oslo? 奥斯陆 \n"}
CONVERSATIONS: list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]] = [
    ([USER], None, {}),
    ([USER], None, {"enable_thinking": False}),
    ([{"role": "system", "content": "Be terse."}, USER], None, {}),
    ([{"role": "system", "content": "Be terse."}, USER], TOOLS, {}),
    ([{"role": "user", "content": [{"type": "text", "text": "in parts"}]}], None, {}),
    (
        [
            USER,
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nCold.", "tool_calls": None},
            {"role": "user", "content": "And now?"},
        ],
        None,
        {},
    ),
    (
        [
            USER,
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I should call.",
                "tool_calls": [CALL, CALL],
            },
            {"role": "tool", "content": "3 degrees"},
            {"role": "tool", "content": "4 degrees"},
        ],
        TOOLS,
        {},
    ),
]


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer()


@pytest.fixture(scope="module")
def reference() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


def test_training_again_gives_the_shipped_files_byte_for_byte() -> None:
    for name, text in build_files().items():
        assert (MODEL_DIR / name).read_text(encoding="utf-8") == text, name


def test_the_folder_stays_small() -> None:
    assert all(path.stat().st_size < 400_000 for path in MODEL_DIR.iterdir())


@pytest.mark.parametrize(("messages", "tools", "kwargs"), CONVERSATIONS)
def test_transformers_renders_the_same_ids(
    tokenizer: ChatTokenizer,
    reference: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    kwargs: dict[str, Any],
) -> None:
    expected = reference.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False, **kwargs
    )
    assert tokenizer.render(messages, tools, kwargs) == expected


def test_transformers_agrees_on_vocabulary_and_end_of_turn(
    tokenizer: ChatTokenizer, reference: Any
) -> None:
    assert len(reference) == tokenizer.vocab_size == VOCAB_SIZE
    assert reference.eos_token_id == tokenizer.end_of_turn
    assert reference.bos_token is None


def _text(tokenizer: ChatTokenizer, *args: Any) -> str:
    return tokenizer.decode(tokenizer.render(*args), skip_special_tokens=False)


def test_the_prompt_ends_inside_thinking_unless_it_is_switched_off(
    tokenizer: ChatTokenizer,
) -> None:
    assert _text(tokenizer, [USER], None, {}).endswith("<|im_start|>assistant\n<think>\n")
    off = _text(tokenizer, [USER], None, {"enable_thinking": False})
    assert off.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_thinking_stays_in_a_tool_loop_and_is_dropped_before_the_last_question(
    tokenizer: ChatTokenizer,
) -> None:
    answered = {"role": "assistant", "content": "Cold.", "reasoning_content": "old thought"}
    calling = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "new thought",
        "tool_calls": [CALL],
    }
    messages = [USER, answered, USER, calling, {"role": "tool", "content": "3"}]
    text = _text(tokenizer, messages, TOOLS, {})
    assert "old thought" not in text
    assert "<think>\nnew thought\n</think>\n\n<tool_call>\n<function=get_weather>\n" in text
    assert "<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>" in text
    assert "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>" in text


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "nobody", "content": "x"}, USER],
        [USER, {"role": "system", "content": "late"}],
        [{"role": "assistant", "content": "x"}],
        [
            USER,
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        ],
    ],
    ids=["empty", "unknown role", "late system", "no user turn", "arguments as a string"],
)
def test_the_template_refuses(tokenizer: ChatTokenizer, messages: list[dict[str, Any]]) -> None:
    with pytest.raises(TemplateError):
        tokenizer.render(messages, None, {})


@given(st.text(alphabet=st.characters(codec="ascii")))
def test_ascii_text_survives_encoding(text: str) -> None:
    assert _SHARED.decode(_SHARED.encode(text), skip_special_tokens=False) == text


_SHARED = ChatTokenizer()
