"""A source that grows costs its new rows, and one whose rows are all known costs nothing."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from prefect.client.schemas.objects import State

from flows.configuration.load import load_config
from tasks.storage.config import StoreConfig
from tasks.storage.store import open_store
from tasks.storage.verify import verify_dataset
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere

pytestmark = [pytest.mark.real, PREFECT_LEAVES_SOCKETS]

CONFIG = """
extends: demo
name: increments
store: {uri: root}
sources:
  mine: {path: rows.jsonl, quota: 20, mapping: {prompt: question}}
extraction: {chunk_size: 20, canary_size: 6, min_chars: 5}
serving: {n_servers: 1, simulator: {time_scale: 0.01, mean_tokens: 60}}
gates: {accept: [duplicate, empty_answer, empty_thinking, repetition, tiny_mask, truncation]}
"""
Trigger = Callable[[], State[Any]]


def ask(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {"question": f"Describe island number {n} in two sentences."} for n in range(first, last)
    ]


@pytest.fixture
def trigger(run_here: RunHere, prefect_url: str, tmp_path: Path) -> Trigger:
    """Give a function that starts what an automation starts for a new version of the source."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.expand import expand

    del run_here  # it set this process's home
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)

    async def run_flow() -> State[Any]:
        loaded = load_config(str(config)).config
        return await expand(loaded, source="mine", return_state=True)

    def start() -> State[Any]:
        with temporary_settings({PREFECT_API_URL: prefect_url}), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            state: State[Any] = asyncio.run(run_flow())
            gc.collect()
        return state

    return start


def write(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_result(state: State[Any]) -> dict[str, Any]:
    return dict(asyncio.run(state.aresult()))


def read_request(uri: str) -> dict[str, Any]:
    return dict(json.loads((path_of(uri) / "_run/request.json").read_bytes()))


def path_of(uri: str) -> Path:
    return Path(unquote(uri.removeprefix("file://")))


def test_new_rows_are_answered_upon_the_newest_dataset_and_known_rows_start_no_fleet(
    trigger: Trigger, tmp_path: Path
) -> None:
    rows = [*ask(0, 30), {"question": "?"}]
    write(tmp_path, rows)
    first = read_result(trigger())
    assert first["counts"]["n_prompts"] == 20, "ten were left unsampled"
    assert (first["counts"]["n_base_rows"], first["counts"]["n_not_sampled"]) == (0, 10)
    fleet_log = sorted(path.name for path in (tmp_path / "home/fleet").rglob("*.log"))

    # Another revision with the same rows: kept, rejected and unsampled ones are all known.
    write(tmp_path, rows[::-1])
    state = trigger()
    assert (state.type.value, state.name) == ("COMPLETED", "NothingNew")
    nothing = read_result(state)
    assert nothing["earlier"] == [first["uri"]]
    assert not (path_of(nothing["uri"]) / "_run/plan.json").exists()
    assert fleet_log == sorted(path.name for path in (tmp_path / "home/fleet").rglob("*.log"))
    assert trigger().name == "NothingNew", "a doubled event finds the same"

    write(tmp_path, [*ask(30, 36), *rows])
    last = read_result(trigger())
    counts = last["counts"]
    assert (counts["n_prompts"], counts["n_rejected"]) == (6, 31)
    assert counts["n_base_rows"] == first["counts"]["n_dataset_rows"] == 20
    assert counts["n_dataset_rows"] == 26
    request = read_request(last["uri"])
    assert request["resolved"]["past"]["base"]["uri"] == first["uri"]
    assert [run["uri"] for run in request["resolved"]["past"]["runs"]] == [first["uri"]]
    assert request["resolved"]["base_sha256"]
    table = pq.read_table(path_of(last["dataset"]))
    assert len(set(table.column("id").to_pylist())) == 26
    store = open_store(StoreConfig(uri=last["uri"]))
    assert verify_dataset(store).ok
    store.close()


def test_a_run_leaves_out_what_the_earlier_runs_that_it_names_have_answered(
    run_here: RunHere, tmp_path: Path
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    write(tmp_path, ask(0, 30))
    first = run_here(config)
    assert first["counts"]["n_prompts"] == 20
    sets = ["store.uri=second", f"extraction.earlier=[{first['uri']}]"]
    second = run_here(config, [*sets[1:], f"store.uri={tmp_path}/second"])
    assert second["counts"]["n_prompts"] == 10, "what was left unsampled may be answered now"
    third = run_here(
        config,
        [f"store.uri={tmp_path}/third", f"extraction.earlier=[{first['uri']}, {second['uri']}]"],
    )
    assert third["state"] == "NothingNew"
    assert not (tmp_path / "third/data").exists()
