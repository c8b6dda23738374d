"""A result that cannot be kept is an error, not a warning that nobody reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, task
from prefect.filesystems import LocalFileSystem, WritableFileSystem

from flows.stages.kept import keep
from tasks.errors import ResultNotKept
from tests.support.in_process import PREFECT_LEAVES_SOCKETS

pytestmark = [pytest.mark.usefixtures("prefect_api"), PREFECT_LEAVES_SOCKETS]


@task(persist_result=True, cache_key_fn=lambda _, parameters: f"made-{parameters['value']}")
async def make(value: str) -> Any:
    if value == "broken":
        raise ValueError("the task's own")
    return object() if value == "no-json" else {"made": value}


async def run(value: str, storage: WritableFileSystem) -> Any:
    kept = keep(make, storage)

    @flow
    async def call() -> Any:
        return await kept(value)

    return await call()


async def save(name: str, folder: Path) -> LocalFileSystem:
    block = LocalFileSystem(basepath=str(folder))
    await block.asave(name, overwrite=True)
    return block


async def test_a_result_that_is_kept_is_given_and_found_by_the_next_run(tmp_path: Path) -> None:
    storage = await save("kept-well", tmp_path / "results")
    assert await run("receipt", storage) == {"made": "receipt"}
    assert await run("receipt", storage) == {"made": "receipt"}, "from the cache"
    (path,) = (tmp_path / "results").iterdir()
    assert "receipt" in json.dumps(json.loads(path.read_text()))


async def test_what_is_no_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultNotKept, match="could not be kept"):
        await run("no-json", await save("kept-not", tmp_path / "results"))


async def test_a_storage_that_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder is needed")
    with pytest.raises(ResultNotKept) as caught:
        await run("receipt", await save("kept-nowhere", tmp_path / "results"))
    assert "task make" in caught.value.where


async def test_the_errors_of_a_task_come_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the task's own"):
        await run("broken", await save("kept-broken", tmp_path / "results"))


async def test_a_block_that_is_lost_in_mid_run_loses_no_result(tmp_path: Path) -> None:
    storage = await save("kept-after-all", tmp_path / "results")
    await LocalFileSystem.adelete("kept-after-all")
    assert await run("receipt", storage) == {"made": "receipt"}
    assert len(list((tmp_path / "results").iterdir())) == 1
