"""Extraction and plan on a store, with the target's template: every row is accounted for."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deployments.samples.make import make_rows, write_samples
from tasks.chat.template import ChatTemplate
from tasks.errors import AccountingError, KeyTaken, SourceError
from tasks.prompts.chunk import read_chunk
from tasks.prompts.config import ExtractionConfig, RowMapping, SourceConfig
from tasks.prompts.extract import check_accounting
from tasks.prompts.record import hash_prompt
from tasks.storage.layout import seen_key
from tasks.storage.store import ArtifactStore
from tests.support.prompts import (
    MODEL,
    ask,
    extract_file,
    list_objects,
    other_store,
    plan_of,
    read_records,
    source_of,
)

REFUSED = {
    "infinity-instruct-0625": {
        "consecutive_user_turns": 1, "duplicate": 1, "empty_turn": 2, "no_user_turn": 1,
        "not_text": 1, "system_not_first": 1, "unknown_role": 1,
    },
    "webinstructsub": {"duplicate": 2, "empty_turn": 1, "path_missing": 1},
    "codefeedback": {"duplicate": 1, "empty_turn": 1, "near_duplicate": 1, "not_text": 1},
    "metamathqa": {"duplicate": 6, "empty_turn": 1},
    "hermes-function-calling-v1": {
        "duplicate": 1, "malformed_tool_call": 2, "malformed_tools": 2,
    },
    "agent-training-dataset": {"empty_turn": 1, "image": 1, "no_user_turn": 1, "unknown_role": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(MODEL)


def test_the_samples_of_the_six_sources_end_as_prompts_or_named_refusals(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipts = [
        extract_file(file_store, template, key, SourceConfig(use=key, path=str(path)))
        for key, path in write_samples(tmp_path / "samples").items()
    ]
    assert {receipt.source: receipt.rejections for receipt in receipts} == REFUSED
    assert {r.source: r.n_rows for r in receipts} == {k: len(v) for k, v in make_rows().items()}
    plan = plan_of(file_store, template, receipts)
    assert plan.n_prompts >= 340
    assert plan.n_duplicates >= 3
    prompts = [prompt for chunk in plan.chunks for prompt in read_chunk(file_store, chunk)]
    assert len({prompt.id for prompt in prompts}) == len(prompts) == plan.n_prompts
    for prompt in prompts:
        assert prompt.id == hash_prompt(prompt.messages, prompt.tools)
        first = next(i for i, m in enumerate(prompt.messages) if m["role"] == "user")
        rendered = template.render(prompt.messages[: first + 1], prompt.tools, thinking=True)
        assert prompt.prompt_token_ids == rendered
    assert {prompt.domain for prompt in prompts} == {"general", "science", "math", "code", "tools"}
    roles = Counter(message["role"] for prompt in prompts for message in prompt.messages)
    assert roles["tool"] > 50
    assert any(ord(char) > 0x4E00 for p in prompts for char in p.messages[-1]["content"])


def test_rows_of_other_public_shapes_are_read_by_configuration_alone(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    properties = {"height": {"type": "float"}, "box": {"type": "tuple"}}
    parameters = {"type": "dict", "properties": properties}
    function = {"name": "tide.get", "description": "Tide", "parameters": parameters}
    shapes: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "answers": ([{"question": "How many?", "answer": "#### 3"}], {"prompt": "question"}),
        "turns": ([{"question_id": 8, "turns": ["Write.", "Rewrite."]}], {"turns": "turns"}),
        "seeds": (
            [{"instruction": "Sort.", "instances": [{"input": "b a", "output": "a b"}]},
             {"instruction": "Greet.", "instances": [{"input": "", "output": "Hi"}]}],
            {"prompt": "instruction", "input": "instances.0.input"},
        ),
        "functions": (
            [{"question": [[{"role": "user", "content": "Tide?"}]], "function": [function]}],
            {"messages": "question", "tools": "function"},
        ),
    }  # fmt: skip
    for key, (rows, mapping) in shapes.items():
        config = source_of(tmp_path, rows, key, mapping=RowMapping.model_validate(mapping))
        receipt = extract_file(file_store, template, key, config)
        assert (receipt.n_rows, receipt.n_prompts) == (len(rows), len(rows)), key


def test_each_filter_refuses_by_its_name(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"q": "Which moss grows on roofs?", "lang": "en", "kind": "ask"},
        {"q": "Welches Moos?", "lang": "de", "kind": "ask"},
        {"q": "Which moss, unlabelled?", "lang": None, "kind": "ask"},
        {"q": "Which moss was told?", "lang": "en", "kind": "tell"},
        {"q": "?", "lang": "en", "kind": "ask"},
        {"q": "moss " * 3500, "lang": "en", "kind": "ask"},
        {"q": "m" * 30_000, "lang": "en", "kind": "ask"},
    ]
    rows = [{**row, "id": f"moss-{index}"} for index, row in enumerate(rows)]
    mapping = RowMapping(prompt="q", language="lang", id="id", filter={"kind": ("ask",)})
    config = source_of(tmp_path, rows, mapping=mapping, languages=("en",))
    extraction = ExtractionConfig(min_chars=3, max_row_bytes=20_000)
    receipt = extract_file(file_store, template, "mine", config, extraction)
    assert receipt.n_prompts == 2, "what has no label is told by its text"
    assert receipt.rejections == {
        "language": 1, "filtered": 1, "too_short": 1, "too_long": 1, "row_too_large": 1,
    }  # fmt: skip
    rejections = read_records(file_store, [receipt.rejections_key])
    assert sorted(record["row"] for record in rejections) == [1, 3, 4, 5, 6]
    own_ids = {record["kind"]: record["own_id"] for record in rejections}
    assert (own_ids["too_short"], own_ids["too_long"]) == ("moss-4", "moss-5")
    assert "moss " not in str(rejections)


def test_a_prompt_that_the_template_refuses_is_counted_and_the_others_stay(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    tokenizer = copy.deepcopy(template._tokenizer)
    tokenizer.chat_template = (
        "{% if 'moss' in messages[-1].content %}{{ raise_exception('no moss here') }}{% endif %}"
        + str(tokenizer.chat_template)
    )
    source = source_of(tmp_path, ask(10))
    receipt = extract_file(file_store, ChatTemplate(tokenizer), "mine", source)
    assert (receipt.n_prompts, receipt.rejections) == (8, {"not_renderable": 2})


def test_a_quota_takes_the_same_prompts_whatever_the_order_of_rows(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [*ask(60), *ask(10)]
    receipts, ids = [], []
    for name, order in (("ahead", rows), ("back", rows[::-1])):
        config = source_of(tmp_path, order, name, quota=25)
        receipt = extract_file(file_store, template, name, config)
        receipts.append(receipt)
        taken = {record["id"] for record in read_records(file_store, receipt.part_keys)}
        seen = read_records(file_store, [seen_key(name)])
        left = {record["id"].hex() for record in seen if record["how"] == "unsampled"}
        assert {record["id"].hex() for record in seen if record["how"] == "kept"} == taken
        assert (len(taken), len(left), taken & left) == (25, 35, set())
        ids.append((taken, left))
    assert ids[0] == ids[1]
    assert {(r.n_prompts, r.n_rejected, r.n_not_sampled) for r in receipts} == {(25, 10, 35)}


def test_extracting_again_writes_the_same_bytes(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    config = source_of(tmp_path, [*ask(300), {"q": ""}, *ask(20)], quota=250)
    receipts = [extract_file(file_store, template, "mine", config)]
    before = list_objects(file_store)
    receipts.append(extract_file(file_store, template, "mine", config))
    elsewhere = other_store(tmp_path, "elsewhere")
    receipts.append(extract_file(elsewhere, template, "mine", config))
    assert receipts[0] == receipts[1] == receipts[2]
    assert before == list_objects(file_store) == list_objects(elsewhere)
    assert len(before) == 3


def test_another_extraction_at_the_same_prefix_is_refused(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    extract_file(file_store, template, "mine", source_of(tmp_path, ask(30)))
    with pytest.raises(KeyTaken):
        extract_file(file_store, template, "mine", source_of(tmp_path, ask(31)))


def test_a_source_whose_rows_all_have_another_shape_is_an_error(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [{"q": [{"role": "narrator", "content": "x"}]}, {"q": "text"}]
    config = source_of(tmp_path, rows, mapping=RowMapping(messages="q"))
    with pytest.raises(SourceError, match="unknown_role 1"):
        extract_file(file_store, template, "mine", config)


def test_a_source_of_which_all_is_filtered_out_gives_nothing_and_no_plan(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    extraction = ExtractionConfig(min_chars=1000)
    config = source_of(tmp_path, ask(4))
    receipt = extract_file(file_store, template, "mine", config, extraction)
    assert (receipt.n_prompts, receipt.part_keys) == (0, ())
    with pytest.raises(SourceError, match="no source gave a prompt"):
        plan_of(file_store, template, [receipt])


def test_a_receipt_whose_numbers_do_not_add_up_is_refused(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipt = extract_file(file_store, template, "mine", source_of(tmp_path, ask(5)))
    for wrong in ({"n_rows": 6}, {"n_rejected": 1, "n_rows": 6}):
        with pytest.raises(AccountingError, match="source mine"):
            check_accounting(receipt.model_copy(update=wrong))


EXTRACT_UNTIL_KILLED = """
import sys
from pathlib import Path
from tasks.chat.template import ChatTemplate
from tasks.prompts import extract
from tasks.prompts.config import RowMapping, SourceConfig
from tasks.storage.config import StoreConfig
from tasks.storage.store import open_store
from tests.support.prompts import MODEL, extract_file
extract.PROMPTS_PER_PART = 100
store = open_store(StoreConfig(uri=sys.argv[1]))
config = SourceConfig(path=sys.argv[2], mapping=RowMapping(prompt="q"))
print("ready", flush=True)
extract_file(store, ChatTemplate.load(MODEL), "mine", config)
"""


@pytest.mark.real
def test_an_extraction_killed_in_the_middle_is_finished_by_a_rerun_with_the_same_bytes(
    template: ChatTemplate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.prompts.extract.PROMPTS_PER_PART", 100)
    config = source_of(tmp_path, ask(3000))
    whole = other_store(tmp_path, "whole")
    receipt = extract_file(whole, template, "mine", config)
    assert len(receipt.part_keys) == 30
    store = other_store(tmp_path, "killed")
    process = subprocess.Popen(
        [sys.executable, "-c", EXTRACT_UNTIL_KILLED, store.uri, str(config.path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": "."},
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while store.head(receipt.part_keys[3]) is None and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 4 <= len(list(store.list())) < 32
    assert extract_file(store, template, "mine", config) == receipt
    assert list_objects(store) == list_objects(whole)
