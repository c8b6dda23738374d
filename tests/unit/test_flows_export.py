"""Exports of a finished run: each form, its card, and a base that is only referred to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from flows.dataset.export import Form, export_dataset
from tasks.errors import BaseDatasetError, UserError
from tests.support.finished import FinishedRun, finish_run
from tests.support.merging import MERGE, invent_rows, write_base
from tests.support.trainers.run import CALL, TOOLS


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("form", get_args(Form))
def test_every_form_has_a_card_that_says_what_it_was_made_from(
    finished: FinishedRun, tmp_path: Path, form: Form
) -> None:
    found = export_dataset(finished.prefix, form, tmp_path / "out")
    assert found["files"]
    assert all(Path(file).is_file() for file in found["files"])
    card = Path(found["card"]).read_text()
    plan = finished.run.plan
    told = (
        plan.model,
        plan.sha,
        plan.tokenizer_sha256,
        plan.chat_template_sha256,
        "0.5.23",
        "someone/invented",
        "0" * 40,
        "cc0-1.0",
        '"temperature"',
    )
    for value in told:
        assert value in card, value
    assert card.startswith("---\nlicense: other\n")


def test_conversations_hold_thinking_calls_and_tools_as_one_string(
    finished: FinishedRun, tmp_path: Path
) -> None:
    found = export_dataset(finished.prefix, "messages", tmp_path / "out")
    lines = [line for file in found["files"] for line in Path(file).read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    answered = [c for outcome in finished.outcomes for c in outcome.completions]
    cut = {c.prompt_id for c in answered if c.finish_reason == "length"}
    assert len(cut) == 1
    assert len(rows) == len(answered) - 1, "a cut answer would be rendered with an end"
    assert not any(row["id"].partition("#")[0] in cut for row in rows)
    called = next(row for row in rows if row["messages"][-1].get("tool_calls"))
    answer = called["messages"][-1]
    assert answer["reasoning_content"] == "I ask."
    assert answer["tool_calls"][0]["function"] == CALL
    assert called["tools"] == TOOLS
    assert {type(row["tools"]) for row in rows} == {str, type(None)}


def test_a_saved_dataset_holds_what_the_json_lines_hold(
    finished: FinishedRun, tmp_path: Path
) -> None:
    lines = export_dataset(finished.prefix, "specforge", tmp_path / "jsonl")["files"]
    rows = [json.loads(line) for file in lines for line in Path(file).read_text().splitlines()]
    saved = export_dataset(finished.prefix, "speculators", tmp_path / "saved")["files"]
    tables = []
    for file in saved:
        if file.endswith(".arrow"):
            with pa.ipc.open_stream(Path(file).read_bytes()) as reader:
                tables.append(reader.read_all())
    found = pa.concat_tables(tables).to_pylist()
    assert found == [{**row, "seq_len": len(row["input_ids"])} for row in rows]
    state = json.loads((tmp_path / "saved" / "state.json").read_text())
    assert [entry["filename"] for entry in state["_data_files"]] == [
        Path(file).name for file in saved if file.endswith(".arrow")
    ]


def test_a_base_that_is_referred_to_is_exported_with_the_rest_while_it_is_the_same(
    tmp_path: Path,
) -> None:
    rows = invent_rows()
    base = write_base(tmp_path, rows)
    refer = MERGE.model_copy(update={"base_rows": "refer"})
    finished = finish_run(tmp_path, base=base, settings=refer)
    files = export_dataset(finished.prefix, "specforge", tmp_path / "out")["files"]
    exported = [json.loads(line) for f in files for line in Path(f).read_text().splitlines()]
    assert len(exported) == 10 + 9
    assert {"input_ids": rows[3]["input_ids"], "loss_mask": rows[3]["loss_mask"]} in exported
    write_base(tmp_path, invent_rows(8))
    with pytest.raises(BaseDatasetError, match="has changed"):
        export_dataset(finished.prefix, "specforge", tmp_path / "again")


def test_a_folder_that_holds_files_is_the_users_to_mend(
    finished: FinishedRun, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(UserError, match="never writes over"):
        export_dataset(finished.prefix, "parquet", tmp_path)
