"""A dataset of the Hub is pinned to its commit and streamed; each refusal says what to do.

Every case runs in a process of its own, because the Hub's client reads its environment once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import COMMIT, NEWER_COMMIT, serve_hub

ROOT = Path(__file__).parents[2]
READ = """
import json, sys
from tasks.errors import SourceError
from tasks.prompts.config import SourceConfig
from tasks.prompts.sources import iter_rows, resolve_source
config = SourceConfig.model_validate_json(sys.argv[1])
try:
    source = resolve_source("mine", config, None)
    rows = list(iter_rows(source, config, None, max_row_bytes=1000))
    print(json.dumps({"revision": source.revision, "rows": rows}))
except SourceError as error:
    print(json.dumps({"what": error.what, "where": error.where, "remedy": error.remedy}))
"""
NEW_ROW = {"q": "A question that came later?", "a": "4"}
ROWS = [{"q": f"Question {i}?", "a": str(i)} for i in range(3)]


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    script = b"raise SystemExit('code of a dataset was run')"
    more = lines + json.dumps(NEW_ROW).encode() + b"\n"
    with serve_hub(
        {
            "someone/plain": {"train.jsonl": lines},
            "someone/moved": {"train.jsonl": lines},
            "someone/scripted": {"scripted.py": script},
        },
        newer={"someone/moved": {"train.jsonl": more}},
    ) as url:
        yield url


def read(hub: str, tmp_path: Path, dataset: str, **more: Any) -> dict[str, Any]:
    environment = more.pop("environment", {})
    config = {"dataset": dataset, "mapping": {"prompt": "q"}, **more}
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(config)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub,
            "HF_HOME": str(tmp_path / "hf"),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_rows_are_streamed_at_the_commit_that_a_name_resolves_to(hub: str, tmp_path: Path) -> None:
    result = read(hub, tmp_path, "someone/plain", revision="v1")
    assert result == {"revision": COMMIT, "rows": ROWS}


@pytest.mark.real
def test_a_run_reads_its_commit_to_the_end_though_main_has_moved_on(
    hub: str, tmp_path: Path
) -> None:
    newest = read(hub, tmp_path, "someone/moved")
    assert newest == {"revision": NEWER_COMMIT, "rows": [*ROWS, NEW_ROW]}
    pinned = read(hub, tmp_path, "someone/moved", revision=COMMIT)
    assert pinned == {"revision": COMMIT, "rows": ROWS}


@pytest.mark.parametrize(
    ("dataset", "more", "what", "remedy"),
    [
        ("someone/gated", {}, "gated", "DRAFTMILL_HF_TOKEN"),
        ("someone/missing", {}, "no such dataset", "owner/name"),
        ("someone/private", {}, "no such dataset", "DRAFTMILL_HF_TOKEN"),
        ("not a name", {}, "no such dataset", "owner/name"),
        ("someone/plain", {"revision": "v9"}, "no revision 'v9'", "commit or tag"),
        ("someone/plain", {"split": "dev"}, "cannot be read", "config and split"),
        ("someone/plain", {"config": "big"}, "cannot be read", "config and split"),
        ("someone/scripted", {}, "cannot be read", "script"),
        ("someone/plain", {"environment": {"HF_HUB_OFFLINE": "1"}}, "switched off", "path"),
        (
            "someone/plain",
            {"environment": {"HF_ENDPOINT": "http://127.0.0.1:9"}},
            "cannot be reached",
            "HF_ENDPOINT",
        ),
    ],
)
def test_a_dataset_that_cannot_be_read_says_what_to_do(
    *, hub: str, tmp_path: Path, dataset: str, more: dict[str, Any], what: str, remedy: str
) -> None:
    result = read(hub, tmp_path, dataset, **more)
    assert what in result["what"]
    assert remedy in result["remedy"]
    assert dataset in result["where"]


def test_a_mapping_that_fits_no_row_of_a_dataset_names_the_nearest_path(
    hub: str, tmp_path: Path
) -> None:
    result = read(hub, tmp_path, "someone/plain", mapping={"prompt": "qq"})
    assert "Nearest in the rows: q" in result["what"]
