"""The trainers' own loaders read our exports and train on exactly the ids that were sampled."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.completions.record import Outcome
from tasks.tokens.export import export_saved, export_specforge, iter_shards
from tasks.tokens.record import MergeReceipt, sample_id
from tests.support.assembling import assemble
from tests.support.generation import GenerationRun, load_template
from tests.support.merging import merge
from tests.support.merging import read as read_samples
from tests.support.outcomes import to_ids
from tests.support.simulator import MODEL_DIR, ROOT
from tests.support.trainers.environment import find_template, make_environment
from tests.support.trainers.run import TOOLS, plan_every_kind

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

Row = dict[str, Any]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_environment(tmp_path_factory.mktemp("trainers") / "venv")


@pytest.fixture(scope="module")
def qwen(python: Path, tmp_path_factory: pytest.TempPathFactory) -> ChatTemplate:
    """Qwen3.6's own chat template, over our tokenizer."""
    folder = tmp_path_factory.mktemp("qwen") / "model"
    shutil.copytree(MODEL_DIR, folder)
    text = find_template(python, "qwen3_6.jinja")
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    return ChatTemplate.load(ModelConfig(path=str(folder)))


def merge_every_kind(
    folder: Path, template: ChatTemplate
) -> tuple[GenerationRun, list[Outcome], MergeReceipt]:
    run, outcomes = plan_every_kind(folder, template)
    return run, outcomes, merge(run, [assemble(run, outcomes)])


def write_supervised(outcomes: list[Outcome], template: ChatTemplate) -> dict[str, str]:
    """Give what the target sampled, as text, by sample."""
    return {
        sample_id(c.prompt_id, c.sample, c.generation): template.decode(to_ids(c.output_token_ids))
        for outcome in outcomes
        for c in outcome.completions
    }


def decode_supervised(row: Row, template: ChatTemplate) -> str:
    pairs = zip(row["input_ids"], row["loss_mask"], strict=True)
    return template.decode([token for token, mask in pairs if mask])


def test_specforge_and_speculators_train_on_exactly_what_was_sampled(
    python: Path, tmp_path: Path
) -> None:
    template = load_template()
    run, outcomes, merged = merge_every_kind(tmp_path, template)
    jsonl, saved = tmp_path / "jsonl", tmp_path / "saved"
    export_specforge(iter_shards(run.store, merged.shards), jsonl, rows_per_file=4)
    export_saved(iter_shards(run.store, merged.shards), saved, rows_per_file=4)
    script = ROOT / "tests" / "support" / "trainers" / "read_exports.py"
    done = subprocess.run(
        [python, script, jsonl, saved, MODEL_DIR],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    read: dict[str, list[Row]] = json.loads(done.stdout.splitlines()[-1])
    samples = read_samples(run, merged)
    expected = {(tuple(s.input_ids.tolist()), tuple(s.loss_mask.tolist())) for s in samples}
    texts = sorted(write_supervised(outcomes, template).values())
    assert len(expected) == len(samples) == len(texts) == 10
    assert set(read) == {
        "specforge",
        "specforge offline",
        "speculators prepare-data",
        "speculators training",
    }
    for loader, rows in read.items():
        found = {(tuple(row["input_ids"]), tuple(row["loss_mask"])) for row in rows}
        assert found == expected, loader
        assert len(rows) == len(samples), loader
        assert sorted(decode_supervised(row, template) for row in rows) == texts, loader
        lengths = [row.get("seq_len", len(row["input_ids"])) for row in rows]
        assert lengths == [len(row["input_ids"]) for row in rows], loader


def test_qwens_own_template_takes_every_kind_of_row_the_whole_way(
    qwen: ChatTemplate, tmp_path: Path
) -> None:
    run, outcomes, merged = merge_every_kind(tmp_path, qwen)
    samples = {sample.id: sample for sample in read_samples(run, merged)}
    texts = write_supervised(outcomes, qwen)
    assert samples.keys() == texts.keys()
    for name, sample in samples.items():
        supervised = qwen.decode(sample.input_ids[sample.loss_mask == 1].tolist())
        prompt = qwen.decode(sample.input_ids[sample.loss_mask == 0].tolist())
        assert supervised == texts[name]
        assert prompt.endswith("<|im_start|>assistant\n<think>\n")
    tool_prompt = next(p for p in run.prompts[0] if p.tools)
    loop = samples[f"{tool_prompt.id}#s0#g1"]
    shown = qwen.decode(loop.input_ids[loop.loss_mask == 0].tolist())
    assert "<parameter=city>\nOslo\n</parameter>" in shown
    assert "<think>\nI ask.\n</think>" in shown, "within a tool loop the thinking is passed back"
    assert '<tool_response>\n{"t": 3}\n</tool_response>' in shown


@pytest.mark.parametrize("thinking", [True, False])
def test_our_own_template_renders_as_qwens_but_for_the_words_above_the_tools(
    qwen: ChatTemplate, thinking: bool
) -> None:
    ours = load_template()
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": " Weather?\n"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I ask.",
            "tool_calls": [call],
        },
        {"role": "tool", "content": '{"t": 3}'},
    ]
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."},
        {"role": "user", "content": "Two?"},
    ]
    for messages in (turns[:1], history, turns):
        assert ours.render(messages, None, thinking=thinking) == qwen.render(
            messages, None, thinking=thinking
        )
    asked = [t.render_text(turns, TOOLS, thinking=thinking) for t in (ours, qwen)]
    assert len({text.partition("<|im_start|>user")[2] for text in asked}) == 1
    assert len({text.partition("<tools>")[2].partition("</tools>")[0] for text in asked}) == 1
