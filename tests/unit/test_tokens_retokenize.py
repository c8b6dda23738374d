"""Ids made of text: what they are held against, and the cases in which text drifts from ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tasks.errors import MaskError
from tasks.tokens.retokenize import (
    AnswerText,
    NotRetokenizable,
    encode_apart,
    retokenize,
    retokenize_completion,
)
from tests.support.assembling import SETTINGS, answer_all, assemble, plan_questions, read_samples
from tests.support.generation import GenerationRun, load_template
from tests.support.outcomes import ask, complete, conclude, to_ids, to_raw
from tests.support.trainers.run import plan_every_kind

NO_IDS = to_raw([])
RETOKENIZE = SETTINGS.model_copy(update={"retokenize": True})
THINKS = AnswerText(content="Two.", reasoning="One and one.")


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    return plan_questions(tmp_path)


def test_every_kind_of_answer_gives_its_own_ids_again(tmp_path: Path) -> None:
    run, outcomes = plan_every_kind(tmp_path, load_template())
    prompts = {prompt.id: prompt for prompt in run.prompts[0]}
    for outcome in outcomes:
        for completion in outcome.completions:
            tools = prompts[completion.prompt_id].tools
            prompt_ids, output_ids = retokenize_completion(
                completion, tools, plan=run.plan, template=run.template
            )
            assert prompt_ids == to_ids(completion.prompt_token_ids)
            if completion.tool_calls:  # the template trims beside the call: that is its drift
                text = run.template.decode(output_ids)
                assert "<parameter=city>\nOslo\n</parameter>" in text
                assert text.endswith("</tool_call><|im_end|>")
            else:
                assert output_ids == to_ids(completion.output_token_ids)


def test_a_newline_at_the_edge_is_not_merged_into_the_prompts() -> None:
    template = load_template()
    prompt, answer = template.render_text(ask("Why?"), None, thinking=True), "\nBecause."
    naive = template.encode(prompt + answer)
    prompt_ids, output_ids = encode_apart(prompt, answer, template)
    assert prompt_ids == template.render(ask("Why?"), None, thinking=True)
    assert naive[: len(prompt_ids)] != prompt_ids, "as one text, the newlines are one token"
    assert prompt_ids + output_ids != naive
    assert template.decode(output_ids) == answer


def test_another_segmentation_of_the_same_text_is_measured_as_drift(run: GenerationRun) -> None:
    completions = answer_all(run)
    exact = to_ids(completions[2].output_token_ids)
    split = next(i for i, token in enumerate(exact) if len(run.template.decode([token])) > 3)
    text = run.template.decode([exact[split]])
    pieces = [*run.template.encode(text[:1]), *run.template.encode(text[1:])]
    sampled = [*exact[:split], *pieces, *exact[split + 1 :]]
    assert run.template.decode(sampled) == run.template.decode(exact)
    completions[2] = replace(completions[2], output_token_ids=to_raw(sampled))
    receipt = assemble(run, [conclude(c) for c in completions], RETOKENIZE)
    assert receipt.drift == {"compared": 6, "prompt_differs": 0, "answer_differs": 1}
    assert receipt.token_sources == {"chat": 6}
    kept = read_samples(run, receipt)[2]
    assert kept.input_ids[kept.loss_mask == 1].tolist() == sampled, "exact ids win where they are"


def test_a_template_rendered_again_trims_what_the_ids_keep(run: GenerationRun) -> None:
    completion = complete(run, run.prompts[0][0], "Hm.\n", "\n\nTwo.  \n")
    answer = {"role": "assistant", "content": "\n\nTwo.  \n", "reasoning_content": "Hm.\n"}
    rendered = run.template.render_answered(completion.messages, None, answer, thinking=True)
    assert "Two.<|im_end|>" in rendered
    made = retokenize_completion(completion, None, plan=run.plan, template=run.template)
    assert run.template.decode(made[1]) == "Hm.\n</think>\n\nTwo.  \n<|im_end|>"


def test_an_answer_cut_in_thought_gains_no_end(run: GenerationRun) -> None:
    cut = AnswerText(content="", reasoning="I think, and", is_cut=True)
    _, output_ids = retokenize(ask("Q?"), None, cut, thinking=True, template=run.template)
    assert run.template.decode(output_ids) == "I think, and"
    answer = {"role": "assistant", "content": "", "reasoning_content": "I think, and"}
    rendered = run.template.render_answered(ask("Q?"), None, answer, thinking=True)
    assert "</think>" in rendered.partition("I think, and")[2], "the template would invent one"


def test_trimmed_sides_are_joined_as_the_target_writes_them() -> None:
    template = load_template()
    prompt_ids, output_ids = retokenize(ask("1+1?"), None, THINKS, thinking=True, template=template)
    assert template.decode(output_ids) == "One and one.\n</think>\n\nTwo.<|im_end|>"
    assert template.decode(prompt_ids).endswith("<think>\n")


def test_an_empty_think_block_is_the_templates_and_not_the_targets() -> None:
    template = load_template()
    plain = AnswerText(content="Two.")
    prompt_ids, output_ids = retokenize(ask("1+1?"), None, plain, thinking=True, template=template)
    assert template.decode(prompt_ids).endswith("<think>\n\n</think>\n\n")
    assert template.decode(output_ids) == "Two.<|im_end|>"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_each_side_decodes_to_its_own_text_or_is_refused(prompt: str, answer: str) -> None:
    template = load_template()
    try:
        prompt_ids, output_ids = encode_apart(prompt, answer, template)
    except NotRetokenizable:
        # Only what normalisation changes across the edge or a decoder cannot give back.
        assert not (prompt + answer).isascii()
        return
    assert template.decode(prompt_ids) == template.normalize(prompt)
    assert template.decode(output_ids) == template.normalize(answer)


def test_answers_without_ids_are_used_only_when_asked_for_and_are_marked(
    run: GenerationRun,
) -> None:
    completions = answer_all(run)
    completions[3] = replace(completions[3], output_token_ids=NO_IDS, prompt_token_ids=NO_IDS)
    outcomes = [conclude(c) for c in completions]
    with pytest.raises(MaskError, match="supervise no token") as told:
        assemble(run, outcomes)
    assert "tokens.retokenize" in told.value.remedy
    receipt = assemble(run, outcomes, RETOKENIZE)
    assert receipt.token_sources == {"chat": 5, "retokenized": 1}
    samples = read_samples(run, receipt)
    assert [s.token_source for s in samples].index("retokenized") == 3
    assert samples[3].input_ids.tolist() == [
        *run.template.render(run.prompts[0][3].messages, None, thinking=True),
        *to_ids(answer_all(run)[3].output_token_ids),
    ]


def test_what_cannot_be_retokenised_is_dropped_and_counted(run: GenerationRun) -> None:
    completions = answer_all(run)
    refused = [{"role": "system", "content": "no user turn at all"}]
    completions[0] = replace(completions[0], output_token_ids=NO_IDS, messages=refused)
    receipt = assemble(run, [conclude(c) for c in completions], RETOKENIZE)
    assert receipt.n_dropped == {"not_retokenizable": 1}
    assert receipt.n_generations == receipt.n_samples + 1
