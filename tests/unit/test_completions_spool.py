"""A slow store slows the run: what waits for it on the disk stays within its bound."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tasks.completions.spool import Spool, measure_spool

CHUNK_BYTES = 1000


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.completions.spool._LOOK_SECONDS", 0.002)


class Work:
    """Chunks that write into the spool, wait for a store, and clear up."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.spool = Spool(folder, limit_bytes, self.told.append)
        self.most_bytes = 0
        self.most_open = 0
        self.n_open = 0

    async def run(self, number: int, upload: float = 0.02) -> None:
        """Take one chunk through."""
        async with self.spool.admit():
            self.n_open += 1
            self.most_open = max(self.most_open, self.n_open)
            chunk = self.folder / f"chunk-{number:06d}"
            chunk.mkdir(parents=True)
            for step in range(1, 11):
                (chunk / "journal.jsonl").write_bytes(bytes(step * CHUNK_BYTES // 10))
                self.most_bytes = max(self.most_bytes, sum(measure_spool(self.folder)))
                await asyncio.sleep(0)
            await asyncio.sleep(upload)
            (chunk / "journal.jsonl").unlink()
            chunk.rmdir()
            self.n_open -= 1


async def test_the_disk_holds_no_more_than_the_bound_and_every_chunk_gets_its_turn(
    tmp_path: Path,
) -> None:
    work = Work(tmp_path / "plan", limit_bytes=3 * CHUNK_BYTES)
    await work.run(0)  # the canary: from it on, the size of a chunk is known
    await asyncio.gather(*(work.run(number) for number in range(1, 25)))
    assert work.most_bytes <= 3 * CHUNK_BYTES
    assert work.most_open == 3
    assert len(work.told) == 1
    assert "generation.spool_gib" in work.told[0]


async def test_with_room_nothing_waits(tmp_path: Path) -> None:
    work = Work(tmp_path / "plan", limit_bytes=100 * CHUNK_BYTES)
    await asyncio.gather(*(work.run(number) for number in range(20)))
    assert work.most_open == 20
    assert work.told == []


async def test_one_chunk_is_let_in_however_small_the_bound(tmp_path: Path) -> None:
    work = Work(tmp_path / "plan", limit_bytes=1)
    await asyncio.gather(*(work.run(number, upload=0) for number in range(3)))
    assert work.most_open == 1


@pytest.mark.parametrize(("name", "most_open"), [("chunk-000099", 1), ("chunk-000099.aside", 3)])
async def test_what_another_run_left_counts_and_what_was_set_aside_does_not(
    tmp_path: Path, name: str, most_open: int
) -> None:
    left = tmp_path / "plan" / name
    left.mkdir(parents=True)
    (left / "journal.jsonl").write_bytes(bytes(2 * CHUNK_BYTES))
    work = Work(tmp_path / "plan", limit_bytes=3 * CHUNK_BYTES)
    await asyncio.gather(*(work.run(number, upload=0) for number in range(3)))
    assert (work.most_open > 1) is (most_open > 1)


async def test_a_chunk_that_fails_gives_its_room_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1, print)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with spool.admit():
                raise RuntimeError
    async with asyncio.timeout(5), spool.admit():
        pass
