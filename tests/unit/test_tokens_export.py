"""Exports hold what trainers read and nothing else, and never write over files."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import CorruptPart, KeyTaken
from tasks.storage.part import find_part
from tasks.storage.record import PartReceipt
from tasks.tokens.asked import AnsweredPart
from tasks.tokens.base import iter_base
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.export import export_messages, export_saved, export_specforge, iter_shards
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.rows import iter_rows
from tests.support.assembling import assemble
from tests.support.generation import GenerationRun, build_run, load_template, make_prompt
from tests.support.merging import assemble_all, merge, plan_merge, read
from tests.support.outcomes import ask, complete, conclude, publish_outcomes, to_ids


@pytest.fixture
def run(tmp_path: Path) -> GenerationRun:
    return plan_merge(tmp_path)


@pytest.fixture
def samples(run: GenerationRun) -> list[SamplesReceipt]:
    return assemble_all(run)


def test_specforge_lines_hold_ids_and_mask_and_nothing_else(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    receipt = merge(run, samples)
    files = export_specforge(
        iter_shards(run.store, receipt.shards), tmp_path / "export", rows_per_file=5
    )
    assert [file.name for file in files] == [f"part-{i:06d}.jsonl" for i in range(3)]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    expected = [
        {"input_ids": s.input_ids.tolist(), "loss_mask": s.loss_mask.tolist()}
        for s in read(run, receipt)
    ]
    assert rows == expected


def test_messages_lines_hold_the_answered_conversation(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    outcomes = [conclude(complete(run, p, "Hm.\n", "\n\nYes, so it is.")) for p in run.prompts[0]]
    part = publish_outcomes(run, 0, outcomes, revision=1)
    answered = AnsweredPart(part, run.plan.chunks[0], frozenset())
    (file,) = export_messages(run.store, run.plan, [answered], tmp_path / "messages")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows[0] == {
        "id": f"{run.prompts[0][0].id}#s0#g0",
        "messages": [
            *run.prompts[0][0].messages,
            {"role": "assistant", "content": "Yes, so it is.", "reasoning_content": "Hm."},
        ],
        "tools": None,
    }
    assert len(rows) == len(run.prompts[0])


def test_an_export_refuses_a_folder_that_holds_files(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    receipt = merge(run, samples)
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "part-000000.jsonl").write_text("an earlier export\n")
    with pytest.raises(KeyTaken):
        export_specforge(iter_shards(run.store, receipt.shards), folder)
    assert (folder / "part-000000.jsonl").read_text() == "an earlier export\n"


def find_data(run: GenerationRun) -> PartReceipt | None:
    return find_part(run.store, 1, run.plan.sha, run.plan.chunks[1].input_sha256)


@pytest.mark.parametrize("form", ["specforge", "messages"])
def test_an_export_names_an_object_that_is_missing(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path, form: str
) -> None:
    shards, part = merge(run, samples).shards, find_data(run)
    assert part is not None
    lost = shards[0].key if form == "specforge" else part.key
    (tmp_path / "store" / lost).unlink()
    with pytest.raises(CorruptPart, match="it is missing") as told:
        if form == "specforge":
            export_specforge(iter_shards(run.store, shards), tmp_path / "out")
        else:
            answered = AnsweredPart(part, run.plan.chunks[1], frozenset())
            export_messages(run.store, run.plan, [answered], tmp_path / "out")
    assert told.value.where.endswith(lost)


def test_an_export_does_not_write_over_a_file(
    run: GenerationRun, samples: list[SamplesReceipt], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(KeyTaken, match="never writes over"):
        export_specforge(iter_shards(run.store, merge(run, samples).shards), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


TURN = st.text(max_size=40).map(lambda text: unicodedata.normalize("NFC", text))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(TURN, TURN), min_size=1, max_size=5))
def test_what_was_sampled_comes_out_of_every_export_again(rows: list[tuple[str, str]]) -> None:
    template = load_template()
    prompts = [make_prompt(template, ask(f"Question {i}"), row=i) for i in range(len(rows))]
    with TemporaryDirectory() as folder:
        run = build_run(Path(folder), template, [prompts])
        completions = [
            complete(run, prompt, reasoning.replace("</think>", "").replace("<think>", ""), content)
            for prompt, (reasoning, content) in zip(prompts, rows, strict=True)
        ]
        merged = merge(run, [assemble(run, [conclude(c) for c in completions])])
        lines = export_specforge(iter_shards(run.store, merged.shards), Path(folder) / "jsonl")
        export_saved(iter_shards(run.store, merged.shards), Path(folder) / "saved")
        base = BaseDatasetConfig(path=str(Path(folder) / "saved"), id=None)
        loaded = [
            (sample.input_ids.tolist(), sample.loss_mask.tolist())
            for batch in iter_base(base, template, thinking=True, refused=Counter())
            for sample in iter_rows(batch)
        ]
        read = [json.loads(line) for file in lines for line in file.read_text().splitlines()]
        assert loaded == [(row["input_ids"], row["loss_mask"]) for row in read]
        expected = [(to_ids(c.prompt_token_ids), to_ids(c.output_token_ids)) for c in completions]
        assert sorted(loaded) == sorted(
            (prompt + output, [0] * len(prompt) + [1] * len(output)) for prompt, output in expected
        )
