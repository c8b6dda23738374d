"""What a run answers of what its sources hold: nothing twice, nothing known, by shares."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.chat.template import ChatTemplate
from tasks.errors import SourceError
from tasks.prompts.chunk import read_chunk
from tasks.prompts.config import ExtractionConfig, MixConfig, RowMapping, SourceConfig
from tasks.prompts.extract import check_accounting
from tasks.prompts.known import KnownPrompts, hash_ids
from tasks.prompts.record import ExtractReceipt, Plan, Prompt
from tasks.prompts.selection import Wishes
from tasks.storage.layout import seen_key
from tasks.storage.scratch import open_scratch
from tasks.storage.store import ArtifactStore
from tests.support.prompts import (
    MODEL,
    ask,
    extract_file,
    other_store,
    plan_of,
    read_records,
    source_of,
    write_jsonl,
)

LONG = (
    "Describe to a visitor who has never been there how the old tram line number {n} climbs from "
    "the harbour through the market to the hill, which bridges it crosses on the way, and what one "
    "sees from the last stop on a clear morning in the month of May before the fog comes in again."
)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(MODEL)


def long_rows(numbers: range) -> list[dict[str, Any]]:
    return [{"q": LONG.format(n=n)} for n in numbers]


def read_prompts(store: ArtifactStore, plan: Plan) -> list[Prompt]:
    return [prompt for chunk in plan.chunks for prompt in read_chunk(store, chunk)]


def near_of(**near: float | None) -> Wishes:
    return Wishes(near=near)


def test_a_near_duplicate_is_refused_within_a_source_unless_the_source_opts_out(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [*long_rows(range(9)), *ask(20)]
    strict = extract_file(file_store, template, "strict", source_of(tmp_path, rows, "strict"))
    assert (strict.n_prompts, strict.rejections) == (21, {"near_duplicate": 8})
    lax = source_of(tmp_path, rows, "lax", near_duplicates=None)
    assert extract_file(file_store, template, "lax", lax).n_prompts == 29
    exact = source_of(tmp_path, rows, "exact", near_duplicates=0.99)
    assert extract_file(file_store, template, "exact", exact).n_prompts == 29


def test_across_sources_the_first_source_keeps_a_near_duplicate(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = {"first": long_rows(range(1, 2)), "second": [*long_rows(range(2, 3)), *ask(5)],
            "third": [*long_rows(range(3, 4)), *ask(2)]}  # fmt: skip
    receipts = [
        extract_file(file_store, template, key, source_of(tmp_path, some, key))
        for key, some in rows.items()
    ]
    plan = plan_of(
        file_store, template, receipts, wishes=near_of(first=0.8, second=0.8, third=None)
    )
    assert (plan.n_prompts, plan.n_duplicates, plan.n_near_duplicates) == (7, 3, 1)
    kept = Counter(prompt.source.key for prompt in read_prompts(file_store, plan))
    assert kept == {"first": 1, "second": 5, "third": 1}


def test_the_rows_order_changes_neither_prompts_nor_ids_with_every_filter_on(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [*long_rows(range(30)), *ask(40), *ask(5), {"q": "x"}, {"q": None}]
    found = []
    for name in ("ahead", "shuffled"):
        order = random.Random(3).sample(rows, len(rows)) if name == "shuffled" else rows
        config = source_of(tmp_path, order, name, quota=25, languages=("en",))
        store = other_store(tmp_path, name)
        receipt = extract_file(store, template, "mine", config, ExtractionConfig(min_chars=3))
        plan = plan_of(store, template, [receipt], wishes=near_of(mine=0.8))
        prompts = read_prompts(store, plan)
        found.append(
            ([prompt.id for prompt in prompts], [p.prompt_token_ids for p in prompts],
             receipt.rejections, receipt.n_not_sampled)
        )  # fmt: skip
    assert found[0] == found[1]
    assert len(found[0][0]) == 25


def test_a_source_that_grows_keeps_what_was_sampled_but_for_what_is_pushed_out(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    taken = []
    for name, n in (("small", 200), ("grown", 220)):
        config = source_of(tmp_path, ask(n), name, quota=100)
        receipt = extract_file(file_store, template, name, config)
        taken.append({record["id"] for record in read_records(file_store, receipt.part_keys)})
    assert len(taken[0] & taken[1]) >= 80
    assert len(taken[1]) == 100


def test_what_is_known_is_refused_and_what_was_seen_in_the_source_too(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = ask(40)
    config = source_of(tmp_path, rows, quota=30)
    first = extract_file(file_store, template, "mine", config)
    seen = read_records(file_store, [seen_key("mine")])
    assert Counter(record["how"] for record in seen) == {"kept": 30, "unsampled": 10}
    everything = frozenset(record["id"] for record in seen)
    grown = source_of(tmp_path, [*rows, *ask(6, 40)], "grown", quota=30)

    def extract(name: str, known: KnownPrompts, key: str = "mine") -> ExtractReceipt:
        receipt = extract_file(other_store(tmp_path, name), template, key, grown, known=known)
        check_accounting(receipt)
        return receipt

    again = extract("again", KnownPrompts(seen={"mine": everything}))
    assert (again.n_prompts, again.rejections, again.n_not_sampled) == (6, {"seen": 40}, 0)
    other_source = extract("other", KnownPrompts(seen={"mine": everything}), key="other")
    assert other_source.n_prompts == 30, "what another source left unsampled is new here"
    records = read_records(file_store, first.part_keys)
    kept = frozenset(bytes.fromhex(record["id"]) for record in records)
    answered = extract("answered", KnownPrompts(answered=kept), key="other")
    assert (answered.n_prompts, answered.rejections) == (16, {"seen": 30})
    by_id = extract("by-id", KnownPrompts(in_base=kept))
    assert (by_id.n_prompts, by_id.rejections) == (16, {"in_base": 30})
    rendered = frozenset(hash_ids(record["prompt_token_ids"]) for record in records)
    by_ids = extract("by-ids", KnownPrompts(rendered=rendered))
    assert (by_ids.n_prompts, by_ids.rejections) == (16, {"in_base": 30})


def test_the_mix_takes_its_shares_and_leaves_the_rest(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipts = [
        extract_file(file_store, template, "asks", source_of(tmp_path, ask(90), "asks",
                                                             domain="general")),
        extract_file(file_store, template, "sums", source_of(
            tmp_path, [{"q": f"What is {n} plus {n * 7}?"} for n in range(60)], "sums",
            domain="math")),
    ]  # fmt: skip
    wishes = Wishes(
        near={}, mix=MixConfig(targets={"math": 0.75}), base_rows={"general": 10}, base_tokens={}
    )
    plan = plan_of(file_store, template, receipts, wishes=wishes)
    domains = Counter(prompt.domain for prompt in read_prompts(file_store, plan))
    assert domains == {"math": 60, "general": 10}
    assert (plan.n_prompts, plan.n_outside_mix) == (70, 80)
    assert plan.mix is not None
    assert plan.mix.unreachable == ()
    nothing = Wishes(mix=MixConfig(targets={"general": 1.0}), base_rows={"math": 10_000})
    with pytest.raises(SourceError, match="the mix left out"):
        plan_of(other_store(tmp_path, "none"), template, [
            extract_file(other_store(tmp_path, "none"), template, "sums", source_of(
                tmp_path, [{"q": "What is 1 plus 2?"}], "sum", domain="math"))
        ], wishes=nothing)  # fmt: skip


def test_both_labels_of_infinity_instruct_go_into_one_run(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    def row(text: str, **fields: Any) -> dict[str, Any]:
        turns = [{"from": "human", "value": text}, {"from": "gpt", "value": "Gladly."}]
        return {"conversations": turns, "langdetect": "en", **fields}

    newer = [
        row("Which tide is highest?", id="a-1", label={"cate_ability_en": ["writing"]}),
        row("Three plus four?", id="a-2", label={"cate_ability_en": ["x", "math ability"]}),
    ]
    older = [
        row("Which tide is lowest?", id=1, label="writing"),
        row("Four plus five?", id=2, label="math ability"),
    ]
    receipts = [
        extract_file(file_store, template, key, SourceConfig(
            use=key, path=str(write_jsonl(tmp_path / f"{key}.jsonl", rows))))
        for key, rows in (("infinity-instruct-0625", newer), ("infinity-instruct-3m", older))
    ]  # fmt: skip
    plan = plan_of(file_store, template, receipts)
    found = {(p.source.key[-4:], p.domain, p.domain_rule) for p in read_prompts(file_store, plan)}
    assert found == {
        ("0625", "general", "default"), ("0625", "math", "label"),
        ("t-3m", "general", "default"), ("t-3m", "math", "label"),
    }  # fmt: skip


def test_each_kind_of_rejection_has_three_examples_and_each_benchmark_its_count(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [{"q": "", "id": f"empty-{n}"} for n in range(5)] + [{"q": 3}, *ask(4)]
    quiz = write_jsonl(tmp_path / "quiz.jsonl", [{"text": row["q"]} for row in ask(2)])
    extraction = ExtractionConfig.model_validate(
        {"benchmarks": {"quiz": {"path": str(quiz), "text": "text"},
                        "other": {"path": str(quiz), "text": "text"}}}
    )  # fmt: skip
    config = source_of(tmp_path, rows, mapping=RowMapping(prompt="q", id="id"))
    receipt = extract_file(file_store, template, "mine", config, extraction)
    assert receipt.rejections == {"benchmark": 2, "empty_turn": 5, "not_text": 1}
    assert receipt.examples["not_text"] == ("row 5",)
    assert len(receipt.examples["empty_turn"]) == 3
    assert receipt.benchmarks == {"quiz": 2, "other": 0}


def test_progress_is_told_while_rows_are_read(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    told: list[int] = []
    extract_file(file_store, template, "mine", source_of(tmp_path, ask(7)),
                 on_progress=lambda n_rows, _: told.append(n_rows))  # fmt: skip
    assert told[-1] == 7


def test_the_recorded_answer_lies_beside_the_prompt_and_not_in_the_chunk(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    rows = [{"q": "Name a moss.", "a": "Peat moss."}]
    config = source_of(tmp_path, rows, mapping=RowMapping(prompt="q", reference="a"))
    receipt = extract_file(file_store, template, "mine", config)
    assert read_records(file_store, receipt.part_keys)[0]["reference"] == "Peat moss."
    plan = plan_of(file_store, template, [receipt])
    assert "reference" not in read_records(file_store, [plan.chunks[0].prompts_key])[0]


HOLD = """
import sys, time
from pathlib import Path
from tasks.storage.scratch import open_scratch
with open_scratch(Path(sys.argv[1])) as folder:
    (folder / "candidates").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(600)
"""


def test_what_a_killed_process_left_on_the_disk_is_swept_and_a_living_ones_is_not(
    tmp_path: Path,
) -> None:
    def hold() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": "."},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    killed, left = hold()
    living, held = hold()
    try:
        assert (left / "candidates").exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.exists()
        with open_scratch(tmp_path) as mine:
            assert sorted(tmp_path.iterdir()) == sorted([held, mine])
        assert list(tmp_path.iterdir()) == [held]
    finally:
        for process in (killed, living):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
