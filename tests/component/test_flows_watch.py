"""A new version of a source is announced once, on a real Prefect server."""

from __future__ import annotations

from pathlib import Path

import pytest

import flows.watch_datasets as watching
from flows.configuration.load import load_config
from flows.watch_datasets import STILL_UNREACHABLE, name_variable, watch_datasets
from tasks.prompts.config import SourceConfig
from tasks.prompts.record import ResolvedSource
from tests.support.in_process import PREFECT_LEAVES_SOCKETS

pytestmark = [PREFECT_LEAVES_SOCKETS, pytest.mark.usefixtures("prefect_api")]

CONFIG = """
extends: demo
name: watched
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
  gone: {path: other.jsonl, mapping: {prompt: question}}
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were announced; each announcement goes to the server all the same."""
    names: list[str] = []
    announce = watching.announce

    async def listen(source: SourceConfig, newest: ResolvedSource) -> None:
        names.append(newest.key)
        await announce(source, newest)

    monkeypatch.setattr(watching, "announce", listen)
    return names


@pytest.mark.real
async def test_a_version_is_announced_once_and_a_lost_source_keeps_no_other_back(
    tmp_path: Path, told: list[str]
) -> None:
    rows, other = tmp_path / "rows.jsonl", tmp_path / "other.jsonl"
    rows.write_text('{"question": "Which river?"}\n')
    other.write_text('{"question": "Which lake?"}\n')
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(str(tmp_path / "run.yaml")).config

    first = await watch_datasets(config, return_state=True)
    assert (first.name, sorted(told)) == ("Completed", ["gone", "mine"])
    again = await watch_datasets(config, return_state=True)
    assert (again.name, len(told)) == ("NothingNew", 2)

    rows.write_text('{"question": "Which sea?"}\n')
    other.unlink()
    third = await watch_datasets(config, return_state=True)
    assert third.name == "Failed"
    assert "gone" in (third.message or "")
    assert told[2:] == ["mine"]
    # Of a source that stays out of reach people are told once: a notice goes by the state's name.
    fourth = await watch_datasets(config, return_state=True)
    assert (fourth.type, fourth.name) == ("FAILED", STILL_UNREACHABLE)
    other.write_text('{"question": "Which lake?"}\n')
    assert (await watch_datasets(config, return_state=True)).name == "NothingNew"
    other.unlink()
    assert (await watch_datasets(config, return_state=True)).name == "Failed"


def test_sources_that_look_alike_have_a_variable_each() -> None:
    names = {name_variable("run", key) for key in ("My Rows", "my-rows", "my_rows", "x" * 100)}
    names |= {name_variable("run", "my_rows", "unreachable")}
    assert len(names) == 5
    assert all(len(name) < 255 for name in names)
