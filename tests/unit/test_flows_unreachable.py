"""Of a source that stays out of reach people are told once, and again once it had been reached."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import flows.watch_datasets as watching
from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.watch_datasets import STILL_UNREACHABLE, watch_datasets
from tasks.errors import SourceError
from tasks.prompts.record import ResolvedSource

CONFIG = """
extends: demo
name: watched
store: {uri: store}
sources:
  near: {dataset: someone/near, mapping: {prompt: question}}
  far: {dataset: someone/far, mapping: {prompt: question}}
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Variables:
    """Prefect's Variables, as far as the watch uses them."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    async def aget(self, name: str) -> Any:
        return self.kept.get(name)

    async def aset(self, name: str, value: Any, *, overwrite: bool) -> None:
        assert overwrite or name not in self.kept
        self.kept[name] = value

    async def aunset(self, name: str) -> bool:
        return self.kept.pop(name, None) is not None


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The sources that cannot be reached; what is announced goes nowhere."""
    names: set[str] = set()

    def resolve(_: ExpansionConfig, key: str, *__: object) -> ResolvedSource:
        if key in names:
            raise SourceError("the Hub does not answer", where=key)
        dataset = f"someone/{key}"
        return ResolvedSource(
            key=key,
            dataset=dataset,
            config=None,
            split="train",
            revision=COMMIT,
            licence="",
        )

    async def announce(*_: object) -> None:
        pass

    monkeypatch.setattr(watching, "Variable", Variables())
    monkeypatch.setattr(watching, "_resolve", resolve)
    monkeypatch.setattr(watching, "announce", announce)
    monkeypatch.setattr(watching, "get_run_logger", lambda: logging.getLogger("watch"))
    return names


async def test_one_episode_is_one_failure(gone: set[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CONFIG)
    config = load_config(str(tmp_path / "run.yaml")).config

    async def watch(*unreachable: str) -> str:
        gone.clear()
        gone.update(unreachable)
        state = await watch_datasets.fn(config)
        assert state.is_failed() == bool(unreachable)
        assert all(key in (state.message or "") for key in unreachable)
        return str(state.name)

    assert await watch() == "Completed"
    assert await watch("far") == "Failed"
    assert [await watch("far") for _ in range(3)] == [STILL_UNREACHABLE] * 3
    assert await watch("far", "near") == "Failed"
    assert await watch("near") == STILL_UNREACHABLE
    assert await watch() == "NothingNew"
    assert await watch("far") == "Failed"
