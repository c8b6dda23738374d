"""Damage of every kind in every kind of object is found, named, and mended by a revision."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.command_line.repair import repair_run
from flows.dataset.verdict import verify_prefix
from tasks.errors import DatasetInvalid, UserError
from tests.support.audit import audit_run
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere

pytestmark = [pytest.mark.real, PREFECT_LEAVES_SOCKETS]

N_DAMAGES = 200
N_PROMPTS = 60
CONFIG = """
extends: demo
name: repair
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 20, canary_size: 20}
serving: {n_servers: 1, simulator: {time_scale: 0.01, mean_tokens: 60}}
merge: {rows_per_shard: 40}
"""
MANIFEST = "_manifest/r0000.json"
FOLDERS = ["_manifest", "_run/plan", "_run/request", "data", "dataset", "extracted", "prompts",
           "report", "tokens"]  # fmt: skip


Mend = Callable[[Path], dict[str, Any]]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [{"question": f"Name {n + 2} bridges over river {n}."} for n in range(N_PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path / "run.yaml"


@pytest.fixture
def finished(run_here: RunHere, config: Path) -> Path:
    """A finished run; repairs of it take place in this process."""
    run_here(config, [])
    return config.parent / "store"


@pytest.fixture
def mend(run_here: RunHere, prefect_url: str, monkeypatch: pytest.MonkeyPatch) -> Mend:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.command_line.launch import run_expansion

    def launch(config: Any, *, flow: Any = "expand") -> dict[str, Any]:
        with temporary_settings({PREFECT_API_URL: prefect_url}):
            return asyncio.run(run_expansion(config, flow=flow))

    del run_here  # sets the home
    monkeypatch.setattr("flows.command_line.repair.launch_expansion", launch)
    return lambda place: repair_run(str(place))


def list_objects(store: Path) -> list[Path]:
    """The objects that the manifest names, and the manifest."""
    return sorted(
        path
        for folder in FOLDERS
        for path in (store / folder.partition("/")[0]).rglob("*")
        if path.is_file() and str(path.relative_to(store)).startswith(folder)
    )


def damage(rng: random.Random, victim: Path, others: list[Path]) -> tuple[str, list[Path]]:
    """Damage an object in one of five ways; gives how, and what was touched."""
    data = bytearray(victim.read_bytes())
    kind = rng.choice(["flip", "cut", "swap", "lose", "add"])
    if kind == "flip":
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
        victim.write_bytes(data)
    elif kind == "cut":
        victim.write_bytes(data[: rng.randrange(len(data))])
    elif kind == "lose":
        victim.unlink()
    elif kind == "swap":
        other = rng.choice([path for path in others if path.read_bytes() != bytes(data)])
        victim.write_bytes(other.read_bytes())
        other.write_bytes(data)
        return kind, [victim, other]
    else:
        root = next(folder for folder in victim.parents if (folder / "_run").is_dir())
        of_dataset = victim.parent.parent.name == "dataset"
        extra = (
            victim.with_name("part-000099.parquet")
            if of_dataset
            else root / f"data/part-{rng.randrange(100, 999):06d}.jsonl.zst"
        )
        shutil.copyfile(victim, extra)
        return kind, [extra]
    return kind, [victim]


def check_every_damage_is_found(store: Path, whole: Path) -> None:
    shutil.copytree(store, whole)
    victims = [path.relative_to(store) for path in list_objects(store)]
    rng = random.Random(20260101)
    done: list[tuple[str, str]] = []
    missed: list[tuple[str, str]] = []
    while len(done) < N_DAMAGES:
        # Each folder as often as any other, however many objects it holds.
        folder = FOLDERS[len(done) % len(FOLDERS)]
        victim = store / rng.choice([v for v in victims if str(v).startswith(folder)])
        kind, touched = damage(rng, victim, [store / v for v in victims])
        names = [str(path.relative_to(store)) for path in touched]
        done.append((kind, names[0]))
        found = verify_prefix(str(store), 1.0)
        # Without its manifest nothing else of a run can be told.
        told = ["there is no valid manifest"] if names == [MANIFEST] and kind == "lose" else names
        if found["ok"] or not any(name in p for name in told for p in found["problems"]):
            missed.append(done[-1])
        for path in touched:
            original = whole / path.relative_to(store)
            if original.exists():
                shutil.copyfile(original, path)
            else:
                path.unlink()
    assert missed == []
    assert {kind for kind, _ in done} == {"flip", "cut", "swap", "lose", "add"}
    assert verify_prefix(str(store), 1.0)["ok"]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def list_manifests(store: Path) -> list[str]:
    return sorted(path.name for path in (store / "_manifest").iterdir())


def test_two_hundred_damages_of_two_hundred_are_found_and_what_can_be_is_mended(
    finished: Path, config: Path, mend: Mend, tmp_path: Path
) -> None:
    assert mend(finished)["state"] == "whole"
    assert list_manifests(finished) == ["r0000.json"]
    check_every_damage_is_found(finished, tmp_path / "whole")

    # By the prefix alone: what can be made from the parts and the manifest.
    samples = next(finished.glob("tokens/*/part-000001-*.parquet"))
    flip(samples)
    flip(finished / "report/canary.html")
    for lost in ("dataset/r0000/part-000001.parquet", "_run/plan.json", "_run/request.json"):
        (finished / lost).unlink()
    mended = mend(finished)
    assert mended["state"] == "mended", mended
    assert len(mended["found"]) == 5
    assert "_run/plan.json: written again, from the manifest" in mended["done"]
    assert "report/canary.html: left as it is, and no longer listed" in mended["done"]
    assert any(
        line.startswith("tokens/") and ".r1.parquet: made" in line for line in mended["done"]
    )
    assert list_manifests(finished)[-1] == "r0001.json"
    audit_run(finished)

    # Answers are asked for again by the configuration only.
    flip(finished / "data/part-000002.jsonl.zst")
    with pytest.raises(UserError, match="does not say of whom") as refused:
        mend(finished)
    assert "draftmill repair CONFIG" in refused.value.remedy
    assert list_manifests(finished)[-1] == "r0001.json"
    mended = mend(config)
    assert "data/part-000002.r1.jsonl.zst: made" in mended["done"]
    assert mended["after"]["ok"]
    audit_run(finished)

    # What has no revisions is not written over: the user moves it, by the command that is told.
    flip(finished / "prompts/part-000001.parquet")
    with pytest.raises(DatasetInvalid) as stuck:
        mend(config)
    (command,) = stuck.value.problems
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / "store-damaged/prompts/part-000001.parquet").exists()
    assert mend(config)["after"]["ok"]
    audit_run(finished)


def test_answers_that_are_still_in_a_journal_are_published_again_without_a_server(
    run_here: RunHere, config: Path, mend: Mend, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As after a kill between a part's publication and the clearing of its journals.
    monkeypatch.setattr("tasks.completions.batch.BatchRun._clear_spool", lambda _: None)
    monkeypatch.setattr("flows.stages.answer.sweep_plan", lambda _: None)
    run_here(config, [])
    store = config.parent / "store"
    before = audit_run(store)
    (store / "data/part-000001.jsonl.zst").unlink()
    mended = mend(store)
    assert mended["state"] == "mended", mended
    after = audit_run(store)
    assert after.outcomes == before.outcomes
