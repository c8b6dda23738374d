"""The template renders as transformers does, refuses with a reason, and pins what it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate, NotRenderable
from tasks.errors import ModelError
from tests.support.generation import load_template
from tests.support.simulator import MODEL_DIR

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ]
)
QUESTION = [{"role": "user", "content": "Weather in Oslo?"}]


def test_the_prompt_ends_where_the_model_begins_to_think() -> None:
    template = load_template()
    text = template.decode(template.render(QUESTION, None, thinking=True))
    assert text == "<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_without_thinking_an_empty_think_block_is_part_of_the_prompt() -> None:
    template = load_template()
    text = template.decode(template.render(QUESTION, None, thinking=False))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_tools_given_as_a_json_string_are_rendered() -> None:
    template = load_template()
    text = template.decode(template.render(QUESTION, TOOLS, thinking=True))
    assert '"name": "get_weather"' in text
    assert template.render(QUESTION, "[]", thinking=True) == template.render(
        QUESTION, None, thinking=True
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=5))
def test_a_batch_renders_what_transformers_renders_one_by_one(questions: list[str]) -> None:
    template = load_template()
    conversations = [([{"role": "user", "content": question}], None) for question in questions]
    expected = [
        template._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=True, return_dict=False
        )
        for messages, _ in conversations
    ]
    assert template.render_batch(conversations, thinking=True) == expected
    assert [template.render(m, t, thinking=True) for m, t in conversations] == expected


def test_a_refused_conversation_leaves_the_others_of_its_batch_alone() -> None:
    template = load_template()
    late_system = [*QUESTION, {"role": "system", "content": "Be brief."}]
    first, refused, last = template.render_batch(
        [(QUESTION, None), (late_system, None), (QUESTION, None)], thinking=True
    )
    assert first == last == template.render(QUESTION, None, thinking=True)
    assert isinstance(refused, NotRenderable)
    assert "System message must be at the beginning" in refused.reason


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ([], None),
        ([{"role": "critic", "content": "Hm."}, *QUESTION], None),
        ([{"role": "user", "content": 5}], None),
        ([{"role": "user"}, {"role": "assistant", "tool_calls": [{"function": "f"}]}], None),
        (QUESTION, "not json"),
        (QUESTION, '{"name": "f"}'),
        (QUESTION, "[1]"),
    ],
)
def test_what_the_template_refuses_has_a_reason(
    messages: list[dict[str, object]], tools: str | None
) -> None:
    with pytest.raises(NotRenderable) as refusal:
        load_template().render(messages, tools, thinking=True)
    assert refusal.value.reason
    assert "\n" not in refusal.value.reason


def test_text_survives_encoding_and_special_tokens_can_be_left_out() -> None:
    template = load_template()
    text = "Prime: 2, 3 und é 你好 🙂\n"
    assert template.decode(template.encode(text)) == text
    ids = template.encode("Yes.<|im_end|>")
    assert template.decode(ids) == "Yes.<|im_end|>"
    assert template.decode(ids, skip_special=True) == "Yes."
    assert ids[-1] in template.end_token_ids
    assert max(ids) < template.vocab_size == 4096


def test_the_hashes_change_with_the_template_and_with_the_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    ours = load_template()
    same = ChatTemplate.load(ModelConfig(path=str(folder)))
    assert (same.tokenizer_sha256, same.chat_template_sha256) == (
        ours.tokenizer_sha256,
        ours.chat_template_sha256,
    )
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{# another #}")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    other = ChatTemplate.load(ModelConfig(path=str(folder)))
    assert other.tokenizer_sha256 != ours.tokenizer_sha256
    assert other.chat_template_sha256 != ours.chat_template_sha256
    assert len(other.render(QUESTION, None, thinking=True)) > 4, "its truncation must not cut"


def test_generation_config_names_further_end_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": [4089, 4087]}')
    assert ChatTemplate.load(ModelConfig(path=str(folder))).end_token_ids == {4089, 4087}


def test_a_missing_tokenizer_is_named_with_its_place_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        ChatTemplate.load(ModelConfig(path=str(tmp_path / "nothing")))
    assert error.value.where == str(tmp_path / "nothing")
    assert "model.tokenizer" in error.value.remedy


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate.load(ModelConfig(path=str(folder)))


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"eos_token_id": "x"}', '{"eos_token_id": [1, null]}']
)
def test_a_generation_config_without_token_ids_is_refused(tmp_path: Path, text: str) -> None:
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    (folder / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json .*Remedy"):
        ChatTemplate.load(ModelConfig(path=str(folder)))


@pytest.mark.parametrize("text", ["{% if", "{{ messages[5].x }}", "a constant"])
def test_a_template_that_would_refuse_every_row_is_refused_itself(
    tmp_path: Path, text: str
) -> None:
    folder = shutil.copytree(MODEL_DIR, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(text)
    with pytest.raises(ModelError, match=r"does not render .*Remedy"):
        ChatTemplate.load(ModelConfig(path=str(folder)))
