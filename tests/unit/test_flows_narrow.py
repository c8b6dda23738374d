"""A run over one source: its prefix is the same however it is asked for, and names are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.stages.narrow import narrow
from tasks.errors import ConfigError, SourceError
from tasks.settings import read_settings
from tests.support.prompts import ask, write_jsonl


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExpansionConfig:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    read_settings.cache_clear()
    path = write_jsonl(tmp_path / "rows.jsonl", ask(3))
    sources = [
        f"sources.{name}={{path: {path}, mapping: {{prompt: q}}}}" for name in ("mine", "yours")
    ]
    return load_config("demo", [f"store.uri={tmp_path / 'root'}", *sources]).config


def test_the_newest_and_its_own_revision_by_name_are_the_same_run(config: ExpansionConfig) -> None:
    newest = narrow(config, "mine", None)
    revision = newest.sources["mine"].revision
    assert revision is not None
    assert narrow(config, "mine", revision) == newest
    assert narrow(config, "mine", "") == newest, "a form's empty field"
    assert list(newest.sources) == ["mine"]
    assert newest.store.uri.startswith(f"{config.store.uri}/mine%40{revision[:12]}-")
    assert narrow(config, None, None) is config


def test_a_revision_of_a_file_that_has_changed_is_not_taken_for_the_newest(
    config: ExpansionConfig, tmp_path: Path
) -> None:
    before = narrow(config, "mine", None).sources["mine"].revision
    write_jsonl(tmp_path / "rows.jsonl", ask(4))
    with pytest.raises(SourceError, match="is not at revision"):
        narrow(config, "mine", before)
    assert narrow(config, "mine", None).sources["mine"].revision != before


def test_an_unknown_source_is_answered_with_those_that_are_known(config: ExpansionConfig) -> None:
    with pytest.raises(ConfigError) as caught:
        narrow(config, "yuors", None)
    assert "no source 'yuors': did you mean 'yours'?" in str(caught.value)
    assert "mine, yours" in str(caught.value)
    with pytest.raises(ConfigError, match="a revision needs its source"):
        narrow(config, None, "abc")
