"""The spool is cleared of what dead processes left there, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tasks.completions.journal import Journal
from tasks.completions.sweep import sweep_chunk, sweep_plan


def find_dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def leave(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"{}\n")
    return path


async def test_what_a_live_process_holds_stays_and_what_a_dead_one_left_goes(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "chunk-000001"
    dead = Journal(folder, fsync_every=1)
    await dead.finish()
    dead.close()
    live = Journal(folder, fsync_every=1)
    dead_name = live.name.replace(f"-{os.getpid()}-", f"-{find_dead_pid()}-")
    leave(folder, f"{dead_name}.part")
    being_written = leave(folder, f"{live.name}.part")
    elsewhere = leave(folder, "another.host-1-7.part")
    sweep_chunk(folder)
    assert set(folder.iterdir()) == {live.path, being_written, elsewhere}
    await live.finish()
    live.close()


def test_a_plan_whose_parts_are_published_leaves_only_what_was_set_aside(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    leave(plan / "chunk-000001", "host-1-1.jsonl")
    kept = leave(plan / "chunk-000002.aside", "host-1-1.jsonl")
    (plan / "chunk-000003").mkdir()
    sweep_plan(plan)
    assert [path for path in plan.rglob("*") if path.is_file()] == [kept]
    assert list(plan.iterdir()) == [kept.parent]


def test_a_plan_without_anything_left_has_no_folder(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    leave(plan / "chunk-000001", "host-1-1.jsonl")
    sweep_plan(plan)
    assert not plan.exists()
    sweep_plan(plan)
