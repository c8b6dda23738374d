"""`draftmill sources` and `draftmill mix`: what they guess, show and write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deployments.samples.base import write_base
from deployments.samples.make import make_rows
from flows.command_line.mix import describe_mix, show_mix
from flows.command_line.preview import preview
from flows.command_line.sources import add_source, describe_source, show_source
from flows.configuration.load import load_config
from tasks.errors import SourceError, UserError
from tasks.prompts.config import RowMapping
from tasks.prompts.guess import guess_mapping, measure_read
from tasks.prompts.sources import load_registry
from tasks.settings import read_settings
from tests.support.prompts import ask, write_jsonl
from tests.support.simulator import MODEL_DIR


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    # The tests before these have imported Prefect, which the commands set up first.
    monkeypatch.setattr("flows.process.embedded._is_embedded", True)
    read_settings.cache_clear()
    yield tmp_path / "home"
    read_settings.cache_clear()


def draw(renderable: Any) -> str:
    console = Console(width=120, no_color=True)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@pytest.mark.parametrize(
    ("rows", "mapping"),
    [
        ([{"question": "How many?", "answer": "3"}], {"prompt": "question", "reference": "answer"}),
        ([{"question_id": 1, "category": "x", "turns": ["Write.", "Again."]}],
         {"turns": "turns", "id": "question_id", "label": "category"}),
        ([{"id": "s", "instruction": "Sort.", "instances": [{"input": "b a", "output": "a"}]}],
         {"prompt": "instruction", "input": "instances.0.input", "id": "id"}),
        ([{"instruction": "Sort.", "input": "b a", "output": "a b"}],
         {"prompt": "instruction", "input": "input", "reference": "output"}),
        ([{"conversations": [{"from": "human", "value": "Hi?"}]}],
         {"messages": "conversations", "role_key": "from", "content_key": "value"}),
        ([{"prompt": [{"role": "user", "content": "Hi?"}], "chosen": "Hello", "rejected": "No"}],
         {"messages": "prompt"}),
        ([{"prompt": "Hi?", "chosen": "Hello", "rejected": "No"}],
         {"prompt": "prompt", "reference": "chosen"}),
        ([{"id": "f", "question": [[{"role": "user", "content": "Area?"}]], "function": []}],
         {"messages": "question", "tools": "function", "id": "id"}),
    ],
)  # fmt: skip
def test_the_usual_shapes_are_guessed(rows: list[Any], mapping: dict[str, str]) -> None:
    assert guess_mapping(rows, where="x") == RowMapping.model_validate(mapping)


@pytest.mark.parametrize("family", sorted(make_rows()))
def test_a_guess_reads_the_six_families_as_well_as_their_entries_do(family: str) -> None:
    rows = make_rows()[family]
    entry = load_registry()[family].mapping
    assert entry is not None
    guessed = guess_mapping(rows, where=family)
    assert measure_read(rows, guessed) >= measure_read(rows, entry) - 0.02


def test_rows_of_no_known_shape_name_their_keys() -> None:
    with pytest.raises(SourceError, match="keys are: alpha, beta"):
        guess_mapping([{"alpha": 1, "beta": [2]}], where="x")
    with pytest.raises(SourceError, match="keys are: none"):
        guess_mapping([3, None], where="x")


def test_an_added_source_runs_and_the_configurations_comments_stay(
    tmp_path: Path, home: Path
) -> None:
    rows = write_jsonl(tmp_path / "My Rows.jsonl", [*ask(4), {"q": None}])
    rows = rows.rename(tmp_path / "My Rows.jsonl")
    data = [{"question": row["q"]} for row in ask(4)]
    write_jsonl(rows, [*data, {"question": None}])
    config = tmp_path / "run.yaml"
    config.write_text("# mine\nextends: demo\nstore: {uri: store}  # here\n")
    found = add_source(rows, None, config)
    assert (found["name"], found["share_read"]) == ("my-rows", 0.8)
    assert "# mine" in config.read_text()
    assert "# here" in config.read_text()
    assert preview(load_config(str(config)).config)["n_prompts"] == 4
    assert home.exists()
    with pytest.raises(UserError, match="has a source 'my-rows' already"):
        add_source(rows, None, config)
    shown = show_source("my-rows", load_config(str(config)).config)
    assert shown["rows"][0]["after"]["messages"] == [
        {"role": "user", "content": data[0]["question"]}
    ]
    text = draw(describe_source(add_source(rows, "other", None)))
    assert "80% of the first 5 rows are read; paste it into yours" in text
    assert "row 0 before" in text


def test_a_refused_row_is_shown_with_its_reason(tmp_path: Path, home: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"q": ""}, {"q": "Hi?\x1b[31m"}])
    config = load_config("demo", [
        f"store.uri={home}", f"sources.mine={{path: {rows}, mapping: {{prompt: q}}}}"
    ]).config  # fmt: skip
    shown = show_source("mine", config)
    assert shown["rows"][0]["after"] == {"rejected": "empty_turn", "detail": "q is empty"}
    assert "\x1b[31m" not in draw(describe_source(shown))
    with pytest.raises(SourceError, match="no such source"):
        show_source("nobody", config)


def test_the_mix_is_shown_before_and_after_with_its_caps_and_what_is_out_of_reach(
    tmp_path: Path, home: Path
) -> None:
    write_base(tmp_path / "base.jsonl", MODEL_DIR / "tokenizer.json")
    write_jsonl(tmp_path / "asks.jsonl", ask(60))
    write_jsonl(tmp_path / "sums.jsonl", [{"q": f"What is {n} plus {n * 7}?"} for n in range(60)])
    config = tmp_path / "run.yaml"
    config.write_text(
        "extends: demo\nstore: {uri: store}\n"
        "base: {path: base.jsonl, domain: domain, source: source}\n"
        "sources:\n"
        "  asks: {path: asks.jsonl, mapping: {prompt: q}, domain: general}\n"
        "  sums: {path: sums.jsonl, mapping: {prompt: q}, domain: math}\n"
        "extraction: {mix: {targets: {code: 0.5, math: 0.1}}}\n"
    )
    found = show_mix(load_config(str(config)).config)
    by_domain = {one["domain"]: one for one in found["domains"]}
    assert by_domain["code"]["before"] == pytest.approx(0.772, abs=0.001)
    assert by_domain["code"]["after"] == pytest.approx(0.532, abs=0.02)
    assert by_domain["math"]["after"] == pytest.approx(0.1, abs=0.01)
    assert {cap["source"]: cap["n_available"] for cap in found["caps"]} == {"asks": 60, "sums": 60}
    assert any(line.startswith("code: ") for line in found["unreachable"])
    assert json.loads(json.dumps(found)) == found
    text = draw(describe_mix(found))
    assert "not reached: code" in text
    assert "█" in text
    assert "┃" in text
    assert not (tmp_path / "store").exists()
    untouched = show_mix(load_config(str(config), ["extraction.mix=null"]).config)
    assert untouched["solution"] is None
    assert untouched["n_prompts"] == 120
    draw(describe_mix(untouched))
