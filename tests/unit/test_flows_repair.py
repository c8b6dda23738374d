"""What a repair cannot mend, it leaves alone and says how the user can."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.command_line.repair import repair_run
from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from tasks.errors import DatasetInvalid
from tasks.storage.layout import plan_key
from tasks.storage.manifest import list_revisions, write_manifest
from tasks.storage.record import ObjectReceipt
from tests.support.finished import finish_run

SOURCE = "sources.mine={path: rows.jsonl, mapping: {prompt: q}}"
PROMPTS = "prompts/part-000000.parquet"


def test_the_command_that_is_told_moves_a_damaged_object_whatever_the_folders_name(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "a run's folder"
    folder.mkdir()
    finished = finish_run(folder)
    store = finished.run.store
    there = ObjectReceipt(key=PROMPTS, sha256="0" * 64, n_bytes=len(store.get(PROMPTS)))
    write_manifest(store, finished.manifest.model_copy(update={"revision": 1, "objects": (there,)}))
    with pytest.raises(DatasetInvalid, match="no revisions") as stuck:
        repair_run(finished.prefix)
    (command,) = stuck.value.problems
    subprocess.run(["sh", "-c", command], check=True)
    assert (folder / "store-damaged" / PROMPTS).is_file()
    assert store.head(PROMPTS) is None


def test_the_list_of_a_retry_is_never_given_up_for_lost(tmp_path: Path) -> None:
    finished = finish_run(tmp_path)
    lists = {"_run/retry-01.json": "0" * 64}
    write_manifest(
        finished.run.store,
        finished.manifest.model_copy(update={"revision": 1, "retry_lists": lists}),
    )
    with pytest.raises(DatasetInvalid, match="lists of retries") as told:
        repair_run(finished.prefix)
    assert told.value.problems == ("_run/retry-01.json: restore it from a copy",)
    assert list_revisions(finished.run.store) == [0, 1]


def test_a_repair_by_the_prefix_alone_keeps_away_from_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = finish_run(tmp_path)
    finished.run.store.create(plan_key(), finished.run.plan.model_dump_json().encode())
    asked_for = load_config("demo", ["store.uri=file:///elsewhere", SOURCE]).config.asked()
    request = {**finished.manifest.request, "asked": asked_for}
    write_manifest(
        finished.run.store,
        finished.manifest.model_copy(update={"revision": 1, "request": request}),
    )
    shard = next((tmp_path / "store/dataset").rglob("*.parquet"))
    shard.unlink()
    asked: list[ExpansionConfig] = []

    class LookedAt(Exception):
        pass

    def launch(config: ExpansionConfig, *, flow: str) -> None:
        assert flow == "rebuild"
        asked.append(config)
        raise LookedAt

    monkeypatch.setattr("flows.command_line.repair.launch_expansion", launch)
    with pytest.raises(LookedAt):
        repair_run(finished.prefix)
    assert "completions/" in asked[0].store.protected
