"""What is said next, once the model has spoken."""

from __future__ import annotations

from typing import Any

from tasks.completions.script import Script

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def called(*names: str) -> Message:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": {}}}
        for i, name in enumerate(names)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": "c0"}


def make_calls(*names: str) -> list[Message]:
    return [
        {"id": f"new{i}", "type": "function", "function": {"name": name, "arguments": {"x": i}}}
        for i, name in enumerate(names)
    ]


def test_a_single_turn_is_completed_by_its_answer() -> None:
    script = Script([{"role": "system", "content": "s"}, user("a")])
    assert script.history == [{"role": "system", "content": "s"}, user("a")]
    assert script.accept("yes", "hm", [], "stop") == "completed"


def test_recorded_answers_are_replaced_by_the_models_own() -> None:
    script = Script([user("a"), said("recorded"), user("b"), said("recorded too"), user("c")])
    assert script.history == [user("a")]
    assert script.accept("own", "thoughts", [], "stop") == "generate"
    assert script.history == [user("a"), said("own"), user("b")]
    assert script.accept("own 2", "thoughts", [], "stop") == "generate"
    assert script.history == [user("a"), said("own"), user("b"), said("own 2"), user("c")]
    assert script.accept("own 3", "thoughts", [], "stop") == "completed"


def test_the_kth_recorded_result_follows_the_kth_call_and_reasoning_stays_in_the_loop() -> None:
    script = Script(
        [user("a"), called("f"), result("1"), called("g"), result("2"), said("r"), user("b")]
    )
    assert script.accept("", "why f", make_calls("f"), "tool_calls") == "generate"
    turn, answer = script.history[-2:]
    assert turn["reasoning_content"] == "why f"
    assert answer == {"role": "tool", "content": "1", "tool_call_id": "new0"}
    assert script.accept("", "why g", make_calls("g"), "tool_calls") == "generate"
    assert script.history[-1]["content"] == "2"
    assert script.accept("done", "end", [], "stop") == "generate"
    assert script.history[-1] == user("b")
    assert all("reasoning_content" not in message for message in script.history)


def test_a_plain_answer_skips_the_recorded_results_up_to_the_next_user_turn() -> None:
    script = Script([user("a"), called("f"), result("1"), said("r"), user("b")])
    assert script.accept("no need", "", [], "stop") == "generate"
    assert script.history == [user("a"), said("no need"), user("b")]


def test_a_plain_answer_to_the_last_user_turn_completes() -> None:
    script = Script([user("a"), called("f"), result("1")])
    assert script.accept("no need", "", [], "stop") == "completed"


def test_a_record_that_ends_in_a_result_has_a_turn_after_it() -> None:
    script = Script([user("a"), called("f"), result("1")])
    assert script.accept("", "", make_calls("f"), "tool_calls") == "generate"
    assert script.accept("so", "", [], "stop") == "completed"


def test_another_name_or_a_parallel_call_is_a_mismatch() -> None:
    messages = [user("a"), called("f"), result("1"), said("r"), user("b")]
    assert Script(messages).accept("", "", make_calls("g"), "tool_calls") == "tool_mismatch"
    assert Script(messages).accept("", "", make_calls("f", "f"), "tool_calls") == "tool_mismatch"


def test_a_call_without_a_result_left_is_a_mismatch_only_if_more_follows() -> None:
    more = Script([user("a"), said("r"), user("b")])
    assert more.accept("", "", make_calls("f"), "tool_calls") == "tool_mismatch"
    last = Script([user("a")])
    assert last.accept("", "", make_calls("f", "g"), "tool_calls") == "completed"


def test_a_cut_answer_ends_the_conversation() -> None:
    script = Script([user("a"), said("r"), user("b")])
    assert script.accept("cut", "", [], "length") == "truncated"


def test_results_of_an_earlier_user_turn_are_not_replayed_later() -> None:
    script = Script(
        [user("a"), called("f"), result("1"), said("r"), user("b"), called("g"), result("2")]
    )
    script.accept("plain", "", [], "stop")
    assert script.accept("", "", make_calls("g"), "tool_calls") == "generate"
    assert script.history[-1]["content"] == "2"
