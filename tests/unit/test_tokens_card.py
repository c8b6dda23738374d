"""The card tells of the base dataset, whoever named it."""

from __future__ import annotations

from pathlib import Path

from tasks.tokens.card import write_card
from tests.support.finished import finish_run


def test_a_base_that_a_triggered_run_took_from_an_earlier_one_is_told(tmp_path: Path) -> None:
    manifest = finish_run(tmp_path).manifest
    resolved = {**manifest.request["resolved"], "base_sha256": "ab" * 32}
    adopted = manifest.model_copy(update={"request": {**manifest.request, "resolved": resolved}})
    assert "ab" * 32 not in write_card(manifest, "file:///run", "parquet")
    card = write_card(adopted, "file:///run", "parquet")
    assert f"the dataset of an earlier run, sha256 {'ab' * 32}" in card


def test_a_base_that_was_asked_for_is_told(tmp_path: Path) -> None:
    manifest = finish_run(tmp_path).manifest
    request = {
        "asked": {**manifest.request["asked"], "base": {"path": "old.parquet"}},
        "resolved": {**manifest.request["resolved"], "base_sha256": "cd" * 32},
    }
    card = write_card(manifest.model_copy(update={"request": request}), "file:///run", "parquet")
    assert f"old.parquet, sha256 {'cd' * 32}" in card
