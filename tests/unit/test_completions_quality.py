"""Which answers are flagged, and when a gate stops the run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from pydantic import ValidationError

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.quality import GateTally, flag_outcome, is_looping
from tasks.completions.record import Completion, Failure, Outcome, Status, Usage

GOOD = Completion(
    prompt_id="p",
    sample=0,
    generation=0,
    messages=[],
    content="A sound answer.",
    reasoning="Some thought.",
    tool_calls=[],
    text=None,
    prompt_token_ids=msgspec.Raw(b"[1]"),
    output_token_ids=msgspec.Raw(b"[2]"),
    token_source="chat",
    finish_reason="stop",
    usage=Usage(10, 100, 50),
    endpoint="http://127.0.0.1:1",
    attempts=1,
    latency_seconds=1.0,
)
PARAGRAPH = "The lighthouse stands on a rock, and its lamp turns once in twelve seconds. "


def varied(n_words: int) -> str:
    return " ".join(f"word{(i * 7919) % 10_007}" for i in range(n_words))


def make(number: int = 0, status: Status = "completed", **changes: Any) -> Outcome:
    fields = {"content": f"A sound answer, number {number}.", **changes}
    completion = replace(GOOD, **fields)
    return Outcome(f"p{number}", 0, status, [completion], None, "a")


BAD: dict[Gate, dict[str, Any]] = {
    "empty_answer": {"content": " \n"},
    "empty_thinking": {"reasoning": "\n"},
    "truncation": {"status": "truncated", "finish_reason": "length"},
    "repetition": {"content": PARAGRAPH * 20},
    "tiny_mask": {"usage": Usage(10, 7, 0)},
    "duplicate": {"content": "I cannot help with that."},
}


def flag(outcome: Outcome, *, thinking: bool = True) -> frozenset[Gate]:
    return flag_outcome(outcome, thinking=thinking, tiny_mask_tokens=8)


@pytest.mark.parametrize("gate", [gate for gate in BAD if gate != "duplicate"])
def test_each_fault_raises_its_own_flag_only(gate: Gate) -> None:
    assert flag(make()) == frozenset()
    assert flag(make(**BAD[gate])) == {gate}


def test_an_answer_cut_while_thinking_is_truncated_and_not_empty() -> None:
    outcome = make(status="truncated", finish_reason="length", content="")
    assert flag(outcome) == {"truncation"}


def test_a_tool_call_without_text_is_no_empty_answer() -> None:
    call = {"function": {"name": "f", "arguments": {}}}
    assert flag(make(content="", tool_calls=[call], finish_reason="tool_calls")) == frozenset()


def test_thinking_is_missed_only_where_it_was_asked_for() -> None:
    assert flag(make(reasoning=""), thinking=False) == frozenset()


def test_loops_are_found_and_long_texts_are_not_loops() -> None:
    assert is_looping(varied(300) + PARAGRAPH * 50)
    assert is_looping(PARAGRAPH * 30 + "And so it ends.")
    assert is_looping("很好。我们再来一次，看看结果如何。" * 60)
    assert is_looping("no " * 400)
    assert not is_looping(varied(2000))
    assert not is_looping(PARAGRAPH * 2 + varied(200))
    table = "\n".join(f"| {i} | {i * i} | {varied(3)} {i} |" for i in range(80))
    assert not is_looping(table)
    fields = [f'  "{varied(i + 1)[-9:]}": {{\n    "type": "string"\n  }},' for i in range(80)]
    assert not is_looping("\n".join(fields))
    assert not is_looping("short " * 20)


@pytest.mark.parametrize("gate", list(BAD))
def test_a_gate_stops_above_its_threshold_and_not_at_it(gate: Gate) -> None:
    config = GatesConfig(**{name: 1.0 for name in BAD if name != gate}, **{gate: 0.05})
    # The first of some equal answers is no duplicate.
    n_at_threshold = 10 + (gate == "duplicate")
    for n_bad, stops in [(n_at_threshold, False), (n_at_threshold + 1, True)]:
        tally = GateTally(config, thinking=True)
        for number in range(200):
            tally.add(make(number, **BAD[gate]) if number < n_bad else make(number))
        verdicts = tally.judge()
        assert [verdict.gate for verdict in verdicts] == [gate] * stops
        if stops:
            (verdict,) = verdicts
            assert (verdict.n_flagged, verdict.n_judged) == (11, 200)
            assert verdict.sample_ids[0].startswith("p")
            assert "5.5% of 200" in str(verdict)


def test_no_gate_judges_before_min_rows() -> None:
    tally = GateTally(GatesConfig(min_rows=50), thinking=True)
    for number in range(49):
        tally.add(make(number, content=""))
    assert tally.judge() == ()
    tally.add(make(49, content=""))
    assert [verdict.gate for verdict in tally.judge()] == ["empty_answer"]


def test_an_accepted_gate_is_measured_and_not_enforced() -> None:
    tally = GateTally(GatesConfig(accept=("empty_answer",)), thinking=True)
    for number in range(60):
        tally.add(make(number, content=""))
    assert tally.counts["empty_answer"] == 60
    assert tally.judge() == ()


def test_failed_conversations_are_not_judged() -> None:
    tally = GateTally(GatesConfig(min_rows=1), thinking=True)
    failure = Failure("deadline", "", retryable=True, attempts=1, endpoints=[])
    tally.add(Outcome("p", 0, "failed", [], failure, "a"))
    assert tally.n_judged == 0
    assert tally.judge() == ()


def test_a_gate_is_accepted_or_redone_and_not_both() -> None:
    GatesConfig(accept=("truncation",), redo=("empty_answer",))
    with pytest.raises(ValidationError, match="truncation: a gate is accepted or redone, not both"):
        GatesConfig(accept=("truncation",), redo=("truncation",))
