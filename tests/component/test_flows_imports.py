"""What a command must not wait for: Prefect and others of the kind, where it does without them.

Each command is run to its end, in a process forked from one that holds no heavy import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.storage.request import freeze_request
from tests.support.cli import Cli
from tests.support.finished import FinishedRun, finish_run
from tests.support.prompts import ask, write_jsonl
from tests.support.simulator import ROOT

# Each of them takes half a second to several seconds.
HEAVY = ("prefect", "transformers", "datasets", "torch", "pandas")
FORK = """
import json, os, sys
import flows.command_line.status, flows.dataset.verdict, pyarrow.compute
from flows.cli import main
heavy, folder, *commands = json.load(sys.stdin)
os.chdir(folder)
for words in commands:
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv, code = ["draftmill", *words], "no exit"
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        loaded = [name for name in heavy if name in sys.modules]
        os.write(3, json.dumps([words[0], code, loaded]).encode() + b"\\n")
        os._exit(0)
    os.waitpid(pid, 0)
"""
FORMS = ("specforge", "speculators", "messages", "parquet")
CONFIG = """
extends: demo
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}, quota: 20}
extraction: {chunk_size: 8, canary_size: 6, min_chars: 5}
serving: {outlook: {mean_output_tokens: 60, server_tokens_per_second: 1000}}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    finished = finish_run(tmp_path_factory.mktemp("finished"))
    request = finished.manifest.request
    freeze_request(finished.run.store, request["asked"], lambda: request["resolved"])
    return finished


def list_imports(folder: Path, commands: Sequence[Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Run commands one after another; give what each has loaded of the heavy kind."""
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "bucket.yaml").write_text("extends: run.yaml\nstore: {uri: s3://bucket/run}\n")
    rows = [{"question": row["q"]} for row in ask(20)]
    write_jsonl(folder / "rows.jsonl", rows)
    told = subprocess.run(
        ["bash", "-c", '"$0" -c "$1" 3>&1 >/dev/null', sys.executable, FORK],
        input=json.dumps([HEAVY, str(folder), *commands]),
        env=Cli(folder / "home", {}).environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    answers = [json.loads(line) for line in told.stdout.splitlines()]
    assert [code or 0 for _, code, _ in answers] == [0] * len(commands), told.stderr
    return [(name, loaded) for name, _, loaded in answers]


def test_a_command_that_looks_or_copies_loads_nothing_heavy(
    finished: FinishedRun, tmp_path: Path
) -> None:
    prefix = finished.prefix
    commands = [
        ["verify", prefix],
        ["repair", prefix],
        ["status", prefix],
        ["config", "show", "run.yaml"],
        ["estimate", "run.yaml"],
        ["policy", "bucket.yaml"],
        ["sources", "add", "rows.jsonl"],
        ["sources", "show", "mine", "--config", "run.yaml"],
        ["servers", "status"],
        ["servers", "install", "--sglang", "0.5.12", "--dry-run"],
        *(["export", prefix, "--to", form, "--format", form] for form in FORMS),
    ]
    assert [each for each in list_imports(tmp_path, commands) if each[1]] == []


def test_a_command_that_speaks_the_targets_tongue_loads_its_tokenizer_and_no_more(
    finished: FinishedRun, tmp_path: Path
) -> None:
    prefix = finished.prefix
    commands = [
        ["show", finished.outcomes[0].prompt_id, prefix],
        ["report", prefix, "--to", "report.html"],
        ["plan", "run.yaml"],
        ["mix", "run.yaml"],
    ]
    found = list_imports(tmp_path, commands)
    # Rows that are written as Parquet from Python's lists make pyarrow look for pandas.
    assert [set(loaded) - {"pandas"} for _, loaded in found] == [{"transformers"}] * len(commands)
    assert all("pandas" not in loaded for _, loaded in found[:2])


def test_a_source_that_is_misspelt_is_told_before_prefect_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    told = Cli(tmp_path / "home", {})("run", str(tmp_path / "run.yaml"), "--source", "mien")
    assert told.code == 2
    assert "did you mean 'mine'? the configuration has mine" in told.err
    assert not (tmp_path / "home" / "prefect").exists()
