"""Ids that disagree with their text are found, named and shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from tasks.completions.record import Completion
from tasks.errors import TokenMismatch
from tasks.tokens.record import SamplesReceipt
from tests.support.assembling import (
    SETTINGS,
    THOUGHT,
    answer_all,
    assemble,
    plan_questions,
)
from tests.support.outcomes import ask, complete, conclude, to_raw


def test_a_drift_of_prompt_ids_is_found_and_shown_decoded(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    completions = answer_all(run)
    drifted = run.template.render(ask("What is 4 + 2!"), None, thinking=True)
    completions[4] = replace(completions[4], prompt_token_ids=to_raw(drifted))
    with pytest.raises(TokenMismatch) as error:
        assemble(run, [conclude(c) for c in completions])
    assert f"{run.prompts[0][4].id}#s0#g0" in error.value.where
    assert "2!" in error.value.what
    assert "2?" in error.value.what


def test_output_ids_of_another_text_are_found(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    completions = answer_all(run)
    other = run.template.encode(f"{THOUGHT}</think>\n\nIt is something else.<|im_end|>")
    completions[2] = replace(completions[2], output_token_ids=to_raw(other))
    with pytest.raises(TokenMismatch, match="do not decode to the recorded text"):
        assemble(run, [conclude(c) for c in completions])


def test_the_raw_text_of_the_native_route_is_held_against_the_ids(tmp_path: Path) -> None:
    run = plan_questions(tmp_path, n=1)
    (prompt,) = run.prompts[0]
    sound = complete(run, prompt, THOUGHT, "\n\nTwo, of course.", token_source="native")
    with pytest.raises(TokenMismatch, match="recorded 'Other text"):
        assemble(run, [conclude(replace(sound, text="Other text."))])
    assert assemble_again(tmp_path / "sound", sound).n_checked == 1


def assemble_again(folder: Path, completion: Completion) -> SamplesReceipt:
    folder.mkdir()
    run = plan_questions(folder, n=1)
    return assemble(run, [conclude(completion)])


def test_one_sample_a_part_is_checked_even_at_share_zero(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    config = SETTINGS.model_copy(update={"check_share": 0.0})
    assert assemble(run, [conclude(c) for c in answer_all(run)], config).n_checked == 1


@pytest.mark.parametrize("bad", [[4096], [1, 2_000_000]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, bad: list[int]) -> None:
    run = plan_questions(tmp_path)
    completions = answer_all(run)
    completions[5] = replace(completions[5], output_token_ids=to_raw(bad))
    config = SETTINGS.model_copy(update={"check_share": 0.0})
    with pytest.raises(TokenMismatch, match="outside the tokenizer's vocabulary") as error:
        assemble(run, [conclude(c) for c in completions], config)
    assert run.prompts[0][5].id in error.value.where


FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def test_tools_that_the_server_wrote_in_its_own_order_are_no_drift(tmp_path: Path) -> None:
    run = plan_questions(tmp_path, n=1, tools=json.dumps(TOOLS))
    (prompt,) = run.prompts[0]
    dumped = [{"type": "function", "function": {"description": None, **FUNCTION, "strict": False}}]
    theirs = run.template.render(prompt.messages, json.dumps(dumped), thinking=True)
    completion = complete(
        run, prompt, THOUGHT, "\n\nTwo, of course.", prompt_token_ids=to_raw(theirs)
    )
    assert assemble(run, [conclude(completion)]).n_checked == 1


@pytest.mark.parametrize("drift", ["other question", "other tool"])
def test_a_drift_beside_or_within_the_tools_is_found(tmp_path: Path, drift: str) -> None:
    run = plan_questions(tmp_path, n=1, tools=json.dumps(TOOLS))
    (prompt,) = run.prompts[0]
    tools = (
        json.dumps(TOOLS) if drift == "other question" else json.dumps(TOOLS).replace('"f"', '"g"')
    )
    messages = ask("Another?") if drift == "other question" else prompt.messages
    theirs = run.template.render(messages, tools, thinking=True)
    completion = complete(
        run, prompt, THOUGHT, "\n\nTwo, of course.", prompt_token_ids=to_raw(theirs)
    )
    with pytest.raises(TokenMismatch, match="chat template"):
        assemble(run, [conclude(completion)])


def test_a_tool_call_in_the_ids_agrees_with_the_parsed_call(tmp_path: Path) -> None:
    run = plan_questions(tmp_path, n=1, tools=json.dumps(TOOLS))
    (prompt,) = run.prompts[0]
    text = "\n\nOne moment.<tool_call>\n<function=f>\n</function>\n</tool_call>"
    completion = replace(
        complete(run, prompt, THOUGHT, text, finish_reason="tool_calls"),
        content="\n\nOne moment.",
        tool_calls=[{"type": "function", "function": {"name": "f", "arguments": {}}}],
    )
    assert assemble(run, [conclude(completion)]).n_checked == 1
