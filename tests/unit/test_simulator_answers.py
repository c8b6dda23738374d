"""What the simulated model says: ids that agree with the text, lengths, tool calls, faults."""

from __future__ import annotations

import statistics
from typing import Any

import orjson
import pytest

from infra.simulator.answers import AnswerLimits, Writer, hash_prompt
from infra.simulator.faults import Faults
from infra.simulator.tokenizer import ChatTokenizer
from infra.simulator.tool_calls import parse_tool_calls

TOKENIZER = ChatTokenizer()
NO_FAULTS = Faults()
WIDE = AnswerLimits(max_tokens=100_000)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                "days": {"type": "integer"},
                "share": {"type": "number"},
                "metric": {"type": "boolean"},
                "tags": {"type": "array"},
            },
            "required": ["city", "days", "share", "metric", "tags"],
        },
    },
}


def _writer(seed: int = 1, mean: float = 300.0) -> Writer:
    return Writer(TOKENIZER, seed=seed, mean_tokens=mean, sigma=0.7)


def _prompt(text: str, tools: list[dict[str, Any]] | None = None, **kwargs: Any) -> list[int]:
    return TOKENIZER.render([{"role": "user", "content": text}], tools, kwargs)


PROMPTS = [
    _prompt(text)
    for text in ("Hello", "写一首关于秋天和图书馆的诗，谢谢老师", "```python\n```", "$x$")
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_ids_are_the_tokenization_of_the_text(prompt: list[int]) -> None:
    answer = _writer().write(prompt, WIDE, NO_FAULTS)
    assert answer.ids[-1] == TOKENIZER.end_of_turn
    assert TOKENIZER.decode(answer.ids) == answer.text
    assert TOKENIZER.encode(answer.text) == answer.ids[:-1]
    assert answer.ids_json is not None
    assert orjson.loads(answer.ids_json) == answer.ids


def test_an_answer_thinks_closes_thinking_and_goes_on() -> None:
    answer = _writer().write(PROMPTS[0], WIDE, NO_FAULTS)
    reasoning, mark, content = answer.text.partition("\n</think>\n\n")
    assert reasoning and mark and content


def test_without_thinking_the_answer_is_content_alone() -> None:
    answer = _writer().write(_prompt("Hello", enable_thinking=False), WIDE, NO_FAULTS)
    assert TOKENIZER.think_end not in answer.ids


def test_the_same_prompt_and_seed_give_the_same_answer_everywhere() -> None:
    first, again = (_writer().write(PROMPTS[0], WIDE, NO_FAULTS) for _ in range(2))
    assert first == again
    assert _writer(seed=2).write(PROMPTS[0], WIDE, NO_FAULTS) != first
    assert _writer().write(PROMPTS[0], WIDE, NO_FAULTS, sample=1) != first


def test_a_chinese_question_gets_a_chinese_answer() -> None:
    content = _writer().write(PROMPTS[1], WIDE, NO_FAULTS).text.partition("</think>")[2]
    assert sum("\u4e00" <= letter <= "\u9fff" for letter in content) > len(content) / 2


def test_lengths_are_lognormal_about_the_mean() -> None:
    writer = _writer(mean=300.0)
    lengths = [len(writer.write(_prompt(f"Question {i}"), WIDE, NO_FAULTS).ids) for i in range(800)]
    assert 270 < statistics.mean(lengths) < 370
    assert statistics.median(lengths) < statistics.mean(lengths)
    assert max(lengths) > 3 * statistics.median(lengths)


def test_max_tokens_cuts_exactly_even_inside_a_character() -> None:
    for n_tokens in range(40):
        limits = AnswerLimits(max_tokens=n_tokens)
        answer = _writer().write(PROMPTS[1], limits, NO_FAULTS)
        assert (len(answer.ids), answer.finish_reason) == (n_tokens, "length")
        assert TOKENIZER.decode(answer.ids) == answer.text


def test_a_stop_string_ends_the_text_before_it() -> None:
    whole = _writer().write(PROMPTS[0], WIDE, NO_FAULTS).text
    stop = whole[100:104]
    answer = _writer().write(PROMPTS[0], AnswerLimits(100_000, stop=(stop,)), NO_FAULTS)
    assert answer.text == whole[: whole.index(stop)]
    assert (answer.finish_reason, answer.matched) == ("stop", stop)
    assert stop in TOKENIZER.decode(answer.ids)
    assert stop not in TOKENIZER.decode(answer.ids[:-1])


def test_ignore_eos_runs_into_max_tokens() -> None:
    answer = _writer().write(PROMPTS[0], AnswerLimits(4000, ignore_eos=True), NO_FAULTS)
    assert (len(answer.ids), answer.finish_reason) == (4000, "length")


def test_a_question_with_tools_is_mostly_answered_by_a_call_that_fits_the_schema() -> None:
    writer, n_calls = _writer(), 0
    for number in range(40):
        answer = writer.write(_prompt(f"Weather {number}?", [TOOL]), WIDE, NO_FAULTS)
        before, calls = parse_tool_calls(answer.text, [TOOL])
        if not calls:
            continue
        n_calls += 1
        assert before.endswith("</think>\n\n")
        assert calls[0]["function"]["name"] == "get_weather"
        arguments = orjson.loads(calls[0]["function"]["arguments"])
        assert arguments["city"] in ("Oslo", "Rome")
        kinds = {key: type(value) for key, value in arguments.items()}
        assert kinds == {"city": str, "days": int, "share": float, "metric": bool, "tags": list}
    assert 30 <= n_calls < 40


def test_after_a_tool_has_answered_no_call_follows() -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    for number in range(20):
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": f"Weather {number}?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "3 degrees"},
        ]
        answer = _writer().write(TOKENIZER.render(messages, [TOOL], {}), WIDE, NO_FAULTS)
        assert "<tool_call>" not in answer.text


def _share(faults: Faults, is_hit: Any) -> float:
    writer = _writer()
    answers = [
        writer.write(_prompt(f"Question {i}"), AnswerLimits(3000), faults) for i in range(200)
    ]
    hits = [bool(is_hit(answer.text.partition("</think>"), answer)) for answer in answers]
    return sum(hits) / len(hits)


def test_empty_answers_end_in_thinking_or_right_after_it() -> None:
    assert _share(Faults(empty_answer_rate=0.5), lambda p, _: not p[2].strip()) == pytest.approx(
        0.5, abs=0.12
    )
    kinds = {
        TOKENIZER.think_end
        in _writer().write(_prompt(f"Q {i}"), WIDE, Faults(empty_answer_rate=1)).ids
        for i in range(20)
    }
    assert kinds == {True, False}


def test_empty_thinking_keeps_the_content() -> None:
    faults = Faults(empty_thinking_rate=0.5)
    share = _share(faults, lambda p, _: bool(not p[0].strip() and p[2].strip()))
    assert share == pytest.approx(0.5, abs=0.12)


def test_truncated_answers_use_up_max_tokens() -> None:
    faults = Faults(truncation_rate=0.5)
    share = _share(faults, lambda _, a: a.finish_reason == "length" and len(a.ids) == 3000)
    assert share == pytest.approx(0.5, abs=0.12)


def test_loops_repeat_one_paragraph() -> None:
    def loops(parts: tuple[str, str, str], _: Any) -> bool:
        paragraphs = parts[2].strip().split("\n\n")
        return len(paragraphs) >= 20 and len(set(paragraphs)) == 1

    assert _share(Faults(loop_rate=0.5), loops) == pytest.approx(0.5, abs=0.12)
    assert _share(NO_FAULTS, loops) == 0


@pytest.mark.parametrize(
    "value",
    [[], {"sloow": 2}, {"error_rate": 1.5}, {"slow": 0}, {"hang": 1}, {"death_after_requests": 0}],
)
def test_wrong_faults_are_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        Faults.from_json(value)


def test_faults_survive_json() -> None:
    faults = Faults(slow=3.0, hang=True, error_rate=0.25, death_after_requests=7)
    assert Faults.from_json(faults.to_json()) == faults


def test_a_prompts_name_is_the_hash_of_its_ids() -> None:
    assert hash_prompt([1, 2, 3]) == hash_prompt([1, 2, 3]) != hash_prompt([1, 23])
    assert len(hash_prompt([1])) == 16


def test_a_call_that_was_cut_off_is_still_parsed_as_the_server_does() -> None:
    whole = "<parameter=city>\nOslo\n</parameter>\n"
    text = f"\n\n<tool_call>\n<function=get_weather>\n{whole}<parameter=da"
    before, [call] = parse_tool_calls(text, [TOOL])
    assert before == "\n\n"
    assert orjson.loads(call["function"]["arguments"]) == {"city": "Oslo"}
