"""The compiled template gives the very text that transformers gives, whatever the template does."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.chat.program import TemplateProgram, is_plain
from tasks.chat.template import ChatTemplate, NotRenderable
from tests.support.generation import load_template

TURNS = [
    {"role": "system", "content": " Be {brief}. ", "name": "house"},
    {"role": "user", "content": "What is <b>7 {{ x }}</b>?\n", "items": "a key named as a method"},
]
TEMPLATES = {
    "fields": "{% for m in messages %}{{ m.role }}:{{ m.content | trim }};{% endfor %}",
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v }},{% endfor %}",
    "a key that is a method": "{{ messages[1].items is callable }}{{ messages[1]['items'] }}",
    "get": "{{ messages[0].get('name', 'none') }}{{ messages[1].get('name', 'none') }}",
    "missing": "[{{ messages[1].name }}]{{ messages[1].name is defined }}",
    "text methods": "{{ messages[0].content.strip().upper().split('E') }}",
    "format": "{{ '{}-{}'.format(messages[0].role, 2) }}{{ messages[0].content.format(brief=1) }}",
    "special tokens": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
    "arguments": "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
    "{{ enable_thinking }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
    "{% endfor %}{{ ns.n }}",
    "blocks": "{% for m in messages %}\n  {% if loop.first %}\n  a\n  {% else %}{% break %}"
    "{% endif %}\n{% endfor %}",
    "internals": "[{{ messages[0].content.__class__ }}]",
    "internals by format": "[{{ '{0.__class__}'.format(messages[0].content) }}]",
    "loop": "{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{{ loop.length }}"
    "{{ loop.previtem is defined }}{{ loop.nothing is defined }}{% endfor %}",
    "the turns themselves": "{{ messages }}{{ messages[1:] + [{'role': 'tool'}] }}",
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}",
}
REFUSED = {
    "raises": "{{ raise_exception('no') }}",
    "internals": "{{ messages[0].content.__class__.__name__ }}",
    "changes": "{{ messages[0].update({'role': 'user'}) }}",
    "internals by format": "{{ '{0.__class__.__name__}'.format(messages[0].content) }}",
    "undefined": "{{ messages[0].nothing.at_all }}",
}


def _with_template(source: str) -> ChatTemplate:
    tokenizer = copy.deepcopy(load_template()._tokenizer)
    tokenizer.chat_template = source
    return ChatTemplate(tokenizer)


def _by_transformers(template: ChatTemplate, messages: list[dict[str, Any]]) -> str:
    return str(
        template._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gives_what_it_gives_by_way_of_transformers(name: str) -> None:
    template = _with_template(TEMPLATES[name])
    expected = _by_transformers(template, TURNS)
    assert expected
    program = TemplateProgram(template._tokenizer)
    # A tuple is a sequence of turns as well; transformers is given a list.
    for turns in (TURNS, tuple(TURNS)):
        assert program.render(turns, thinking=True) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_sandbox_forbids_stays_forbidden(name: str) -> None:
    template = _with_template(REFUSED[name])
    with pytest.raises(Exception, match=r"."):
        _by_transformers(template, TURNS)
    with pytest.raises(Exception, match=r"."):
        TemplateProgram(template._tokenizer).render(TURNS, thinking=True)
    (refusal,) = template.render_batch([(TURNS, None)], thinking=True)
    assert isinstance(refusal, NotRenderable)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80), st.text(max_size=80), st.booleans())
def test_the_models_own_template_gives_the_same_ids(
    system: str, question: str, thinking: bool
) -> None:
    template = load_template()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    assert is_plain(messages)
    assert template.render_batch([(messages, None)], thinking=thinking) == [
        template.render(messages, None, thinking=thinking)
    ]


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"},
        {"role": "assistant", "content": "4", "thinking": "2 + 2"},
        {"role": "user", "content": type("Text", (str,), {})("Hi")},
    ],
)
def test_turns_that_transformers_would_change_go_its_way(turn: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, turn]
    assert not is_plain(messages)
    template = load_template()
    assert template.render_batch([(messages, None)], thinking=True) == [
        template.render(messages, None, thinking=True)
    ]


def test_the_program_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    template = load_template()
    monkeypatch.setattr(ChatTemplate, "render_text", lambda *_args, **_kwargs: pytest.fail("slow"))
    assert template.render_batch([(TURNS[1:], None)], thinking=True)
