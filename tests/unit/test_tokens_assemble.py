"""Samples are the exact ids, masked to what was generated; whatever is wrong stops assembly."""

from __future__ import annotations

import hashlib
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tasks.completions.record import Failure
from tasks.errors import AccountingError, CorruptPart, MaskError, ModelError
from tasks.tokens.assemble import assemble_part, find_samples, iter_samples
from tasks.tokens.rows import SCHEMA
from tests.support.assembling import (
    SETTINGS,
    THOUGHT,
    answer_all,
    assemble,
    plan_questions,
    read_samples,
)
from tests.support.generation import build_run, load_template, make_prompt
from tests.support.merging import expect_ids
from tests.support.outcomes import ask, complete, conclude, publish_outcomes, to_ids, to_raw

# What a server returns was decoded from ids, and so is in the tokenizer's normal form.
TEXT = st.text(max_size=60).map(lambda text: unicodedata.normalize("NFC", text))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=30), TEXT, TEXT),
        min_size=1,
        max_size=6,
        unique_by=lambda row: row[0].strip(),
    )
)
def test_masks_cover_exactly_the_generated_ids(rows: list[tuple[str, str, str]]) -> None:
    template = load_template()
    prompts = [
        make_prompt(template, ask(f"Q: {question}"), row=i)
        for i, (question, _, _) in enumerate(rows)
    ]
    with TemporaryDirectory() as folder:
        run = build_run(Path(folder), template, [prompts])
        completions = [
            complete(
                run,
                prompt,
                # An answer that itself holds the tag would be split there, by servers and by us.
                reasoning.replace("</think>", "").replace("<think>", ""),
                content,
            )
            for prompt, (_, reasoning, content) in zip(prompts, rows, strict=True)
        ]
        receipt = assemble(run, [conclude(c) for c in completions])
        samples = read_samples(run, receipt)
        assert receipt.n_checked == receipt.n_samples == len(rows)
        for sample, completion, prompt in zip(samples, completions, prompts, strict=True):
            prompt_ids = template.render(prompt.messages, None, thinking=True)
            output_ids = to_ids(completion.output_token_ids)
            assert sample.input_ids.tolist() == prompt_ids + output_ids
            assert sample.loss_mask.tolist() == [0] * len(prompt_ids) + [1] * len(output_ids)
            assert template.decode(sample.input_ids[sample.loss_mask == 1].tolist()) == (
                f"{completion.reasoning}</think>{completion.content}<|im_end|>"
            )


def test_rows_are_canonical_and_named_after_their_generation(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    receipt = assemble(run, [conclude(c) for c in answer_all(run)])
    path = tmp_path / "samples.parquet"
    path.write_bytes(run.store.get(receipt.key))
    assert pq.read_schema(path).equals(SCHEMA)
    rows = pq.read_table(path).to_pylist()
    assert [row["id"] for row in rows] == [f"{prompt.id}#s0#g0" for prompt in run.prompts[0]]
    assert {(row["source"], row["domain"]) for row in rows} == {("invented", "general")}
    assert all(row["seq_len"] == len(row["input_ids"]) == len(row["loss_mask"]) for row in rows)
    assert receipt.n_tokens == sum(row["seq_len"] for row in rows)
    assert receipt.n_supervised_tokens == sum(sum(row["loss_mask"]) for row in rows)
    assert receipt.finish_reasons == {"stop": len(rows)}


def test_every_turn_of_a_conversation_is_a_sample(tmp_path: Path) -> None:
    template = load_template()
    prompt = make_prompt(template, ask("First?"))
    run = build_run(tmp_path, template, [[prompt]])
    first = complete(run, prompt, "a", "\n\nOne, as an answer.")
    history = [
        *prompt.messages,
        {"role": "assistant", "content": "One, as an answer."},
        *ask("Second?"),
    ]
    second = replace(
        complete(run, replace(prompt, messages=history), "b", "\n\nTwo, as an answer."),
        generation=1,
    )
    outcome = replace(
        conclude(first, second, status="partial"),
        failure=Failure("tool_mismatch", "another tool", retryable=False, attempts=1, endpoints=[]),
    )
    samples = read_samples(run, assemble(run, [outcome]))
    assert [sample.id for sample in samples] == [f"{prompt.id}#s0#g0", f"{prompt.id}#s0#g1"]
    assert "Second?" in template.decode(samples[1].input_ids[samples[1].loss_mask == 0].tolist())


def test_truncated_answers_are_kept_without_an_end_token_or_dropped(tmp_path: Path) -> None:
    run = plan_questions(tmp_path, n=2)
    whole, cut = run.prompts[0]
    outcomes = [
        conclude(complete(run, whole, THOUGHT, "\n\nTwo, of course.")),
        conclude(
            complete(
                run,
                cut,
                "Let me think about",
                "",
                finish_reason="length",
                output_token_ids=to_raw(run.template.encode("Let me think about")),
            ),
            status="truncated",
        ),
    ]
    kept = assemble(run, outcomes)
    assert kept.finish_reasons == {"length": 1, "stop": 1}
    assert run.template.decode(read_samples(run, kept)[1].input_ids.tolist()).endswith(
        "think about"
    )
    dropped = assemble(run, outcomes, SETTINGS.model_copy(update={"truncated": "drop"}))
    assert (dropped.n_generations, dropped.n_samples) == (2, 1)
    assert dropped.n_dropped == {"truncated": 1}
    assert dropped.key != kept.key, "other settings make other samples"


def test_samples_longer_than_max_length_are_dropped_and_counted(tmp_path: Path) -> None:
    run = plan_questions(tmp_path, n=3)
    completions = answer_all(run)
    completions[1] = complete(run, run.prompts[0][1], THOUGHT, "\n\n" + "very long " * 200)
    receipt = assemble(
        run, [conclude(c) for c in completions], SETTINGS.model_copy(update={"max_length": 100})
    )
    assert (receipt.n_generations, receipt.n_samples, receipt.n_dropped) == (3, 2, {"too_long": 1})
    assert [sample.id[:32] for sample in read_samples(run, receipt)] == [
        run.prompts[0][0].id,
        run.prompts[0][2].id,
    ]
    assert all(
        sample.seq_len == len(sample.loss_mask) <= 100 for sample in read_samples(run, receipt)
    )


def test_a_zero_mask_stops_assembly_and_is_named(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    completions = answer_all(run)
    completions[3] = replace(completions[3], output_token_ids=to_raw([]))
    with pytest.raises(MaskError, match=f"{run.prompts[0][3].id}#s0#g0"):
        assemble(run, [conclude(c) for c in completions])


def test_tiny_masks_stop_assembly_past_their_share_only(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    completions = answer_all(run)
    completions[3] = complete(run, run.prompts[0][3], "", "")
    outcomes = [conclude(c) for c in completions]
    config = SETTINGS.model_copy(update={"tiny_mask_tokens": 8})
    with pytest.raises(MaskError, match=r"1 of 6 samples \(16.7%\).*#s0#g0"):
        assemble(run, outcomes, config)
    allowed = assemble(run, outcomes, config.model_copy(update={"tiny_mask_share": 0.2}))
    assert allowed.n_tiny_masks == 1


@pytest.mark.parametrize("fault", ["missing", "foreign", "doubled"])
def test_a_part_without_one_outcome_a_conversation_is_refused(tmp_path: Path, fault: str) -> None:
    run = plan_questions(tmp_path)
    outcomes = [conclude(c) for c in answer_all(run)]
    stranger = make_prompt(run.template, ask("Who are you?"))
    changed = {
        "missing": outcomes[:-1],
        "foreign": [*outcomes[:-1], conclude(complete(run, stranger, THOUGHT, "\n\nNobody."))],
        "doubled": [*outcomes, outcomes[0]],
    }[fault]
    with pytest.raises(AccountingError):
        assemble(run, changed)


def test_samples_made_before_are_taken_as_they_are(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    arguments = (run.store, run.plan, run.plan.chunks[0], part, run.template, SETTINGS)
    first = assemble_part(*arguments)
    run.store.get(run.plan.chunks[0].prompts_key)
    (tmp_path / "store" / run.plan.chunks[0].prompts_key).unlink()
    assert assemble_part(*arguments) == first, "without prompts nothing could be made anew"


@pytest.mark.parametrize("damage", ["cut", "page"])
def test_damaged_samples_are_made_again_beside_them(tmp_path: Path, damage: str) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    arguments = (run.store, run.plan, run.plan.chunks[0], part, run.template, SETTINGS)
    receipt = assemble_part(*arguments)
    path = tmp_path / "store" / receipt.key
    sound = path.read_bytes()
    # The ids begin the file's middle; nothing but the pages' checksums tells that a bit fell over.
    place = sound.index(b"PAR1", 4) if damage == "cut" else len(sound) // 4
    damaged = sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :]
    path.write_bytes(damaged)
    with pytest.raises(CorruptPart):
        list(iter_samples(run.store, receipt))
    assert find_samples(run.store, run.plan, part, SETTINGS) is None
    again = assemble_part(*arguments)
    assert again.key == receipt.key.replace(".parquet", ".r1.parquet")
    assert again.sha256 == hashlib.sha256((tmp_path / "store" / again.key).read_bytes()).hexdigest()
    assert {sample.id for sample in iter_samples(run.store, again)} == expect_ids(run)
    assert path.read_bytes() == damaged, "what is damaged stays as it is"
    assert find_samples(run.store, run.plan, part, SETTINGS) == again
    assert assemble_part(*arguments) == again


def test_another_tokenizer_or_another_plan_is_refused(tmp_path: Path) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    chunk = run.plan.chunks[0]
    other_tokenizer = run.plan.model_copy(update={"tokenizer_sha256": "0" * 64})
    with pytest.raises(ModelError):
        assemble_part(run.store, other_tokenizer, chunk, part, run.template, SETTINGS)
    other_plan = run.plan.model_copy(update={"max_tokens": 7})
    with pytest.raises(CorruptPart, match="another plan"):
        assemble_part(run.store, other_plan, chunk, part, run.template, SETTINGS)


@pytest.mark.parametrize("limit", [100, 110, 130])
def test_a_prompts_head_is_cut_and_an_answer_never(tmp_path: Path, limit: int) -> None:
    template = load_template()
    long = make_prompt(template, ask("Consider this: " + "many words " * 100 + "and?"), row=0)
    short = make_prompt(template, ask("And this?"), row=1)
    run = build_run(tmp_path, template, [[long, short]])
    answers = ["\n\nYes, it is so.", "\n\n" + "very long " * 200]
    completions = [
        complete(run, prompt, THOUGHT, answer)
        for prompt, answer in zip((long, short), answers, strict=True)
    ]
    config = SETTINGS.model_copy(update={"max_length": limit, "too_long": "cut"})
    receipt = assemble(run, [conclude(c) for c in completions], config)
    assert (receipt.n_samples, receipt.n_cut, receipt.n_dropped) == (1, 1, {"too_long": 1})
    (sample,) = read_samples(run, receipt)
    output_ids = to_ids(completions[0].output_token_ids)
    prompt_ids = to_ids(completions[0].prompt_token_ids)
    assert sample.seq_len == limit
    assert sample.input_ids.tolist() == (prompt_ids + output_ids)[-limit:]
    assert sample.loss_mask.tolist() == [0] * (limit - len(output_ids)) + [1] * len(output_ids)
    assert receipt.n_tokens == limit


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_data_part_that_is_not_what_it_was_is_refused_and_named(
    tmp_path: Path, damage: str
) -> None:
    run = plan_questions(tmp_path)
    part = publish_outcomes(run, 0, [conclude(c) for c in answer_all(run)])
    path = tmp_path / "store" / part.key
    sound = path.read_bytes()
    middle = len(sound) // 2
    flipped = sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
    path.write_bytes(sound[:middle] if damage == "cut" else flipped)
    with pytest.raises(CorruptPart) as told:
        assemble_part(run.store, run.plan, run.plan.chunks[0], part, run.template, SETTINGS)
    assert part.key in str(told.value)
    assert not list(run.store.list("tokens/"))
