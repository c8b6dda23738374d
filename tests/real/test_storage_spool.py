"""A store that is slow, and a disk that is full: the run slows, or ends cleanly and goes on."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.completions.spool import measure_spool
from tasks.storage.files import FileStore
from tasks.storage.record import ObjectStat
from tests.support.audit import audit_run, count_requests
from tests.support.cli import Cli
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere

pytestmark = [pytest.mark.real, PREFECT_LEAVES_SOCKETS]

N_PROMPTS = 300
CONFIG = """
extends: demo
name: spool
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 20, canary_size: 20}
serving:
  n_servers: 1
  simulator: {time_scale: 0.005, mean_tokens: 150, request_log: requests.jsonl}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [{"question": f"What grows on island number {n}?"} for n in range(N_PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path / "run.yaml"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB where the journals go."""
    spool = tmp_path / "home/spool"
    spool.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(spool)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("no right to mount a file system here")
    yield spool
    subprocess.run(["umount", "--lazy", str(spool)], check=True)


def test_a_slow_store_slows_the_run_and_the_spool_keeps_its_bound(
    run_here: RunHere, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = FileStore.create_file

    def create_slowly(store: FileStore, key: str, path: Path) -> ObjectStat:
        if key.startswith("data/"):
            time.sleep(1.5)
        return create(store, key, path)

    monkeypatch.setattr(FileStore, "create_file", create_slowly)
    monkeypatch.setattr("tasks.completions.spool._LOOK_SECONDS", 0.05)
    most, open_chunks, is_done = 0, 0, threading.Event()

    def watch() -> None:
        nonlocal most, open_chunks
        while not is_done.wait(0.02):
            for plan in (tmp_path / "home/spool").glob("[0-9a-f]*"):
                sizes = [size for size in measure_spool(plan) if size]
                most, open_chunks = max(most, sum(sizes)), max(open_chunks, len(sizes))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        limit = 600 << 10
        run_here(config, [f"generation.spool_gib={limit / 2**30}"])
    finally:
        is_done.set()
        watcher.join()
    audit_run(tmp_path / "store")
    assert open_chunks >= 2, "chunks generate while others are sent"
    assert most <= limit, f"{most} bytes under a bound of {limit}"


def test_a_full_disk_ends_the_run_cleanly_and_with_space_it_goes_on(
    cli: Cli, config: Path, small_disk: Path, tmp_path: Path
) -> None:
    # Else the doctor refuses so small a disk before the run begins.
    blind = ["--set", "environment.spool_gib=0", "--set", "extraction.chunk_size=280"]
    stopped = cli("run", str(config), *blind)
    assert stopped.code in (1, 2), stopped.err
    assert "No space left" in stopped.err
    assert "run again" in stopped.err
    assert "Traceback" not in stopped.err
    n_answered = sum(count_requests(tmp_path / "requests.jsonl").values())
    assert n_answered
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    told = cli("run", str(config), *blind, "--json")
    assert told.code == 0, told.err
    assert len(audit_run(tmp_path / "store").outcomes) == N_PROMPTS
