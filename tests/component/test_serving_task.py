"""The task that makes sure of a fleet: attached or launched, and never remembered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect.cache_policies import NO_CACHE

from tasks.chat.config import ModelConfig
from tasks.errors import NoEndpoint
from tasks.serving.config import ServingConfig
from tasks.serving.record import RenderingProbe
from tasks.serving.supervisor import fleet_down
from tasks.serving.task import ensure_fleet
from tasks.settings import Settings
from tests.support.fleet import (
    MODEL,
    SIMULATED,
    LineLogger,
    render_probe,
    stub_config,
    wait_until,
)
from tests.support.simulator import find_free_port, start_simulator


@pytest.fixture(scope="module")
def probe() -> RenderingProbe:
    return render_probe()


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Give the artifacts that the task makes; no Prefect server is here."""
    made: list[dict[str, Any]] = []

    async def keep(**artifact: Any) -> None:
        made.append(artifact)

    monkeypatch.setattr("tasks.serving.task.acreate_table_artifact", keep)
    return made


async def test_the_task_attaches_to_the_servers_named_and_says_who_was_refused(
    probe: RenderingProbe, monkeypatch: pytest.MonkeyPatch, tables: list[dict[str, Any]]
) -> None:
    logger = LineLogger()
    monkeypatch.setattr("tasks.serving.task.get_run_logger", lambda: logger)
    closed = f"http://127.0.0.1:{find_free_port()}"
    with start_simulator(2, context_length=4096) as servers:
        urls = tuple(server.base_url for server in servers)
        config = ServingConfig(mode="attach", urls=(*urls, closed), ready_timeout_seconds=1)
        found = await ensure_fleet.fn(config, MODEL, probe)
        assert [each.base_url for each in found] == list(urls)
        assert f"refused {closed}: no answer to /server_info (ConnectError)" in logger.lines
        with pytest.raises(NoEndpoint) as failed:
            await ensure_fleet.fn(config, ModelConfig(path="org/other"), probe)
    assert all(url in str(failed.value) for url in (*urls, closed))
    admitted, refused = tables
    assert admitted["key"] == "fleet"
    rows = {row["endpoint"]: row for row in admitted["table"]}
    assert [rows[f"`{url}`"]["verdict"] for url in urls] == ["admitted", "admitted"]
    assert (rows[f"`{urls[0]}`"]["context"], rows[f"`{urls[0]}`"]["exact ids by"]) == (
        "4,096",
        "native",
    )
    lost = rows[f"`{closed}`"]
    why = "`no answer to /server_info (ConnectError)`"
    assert (lost["verdict"], lost["why"]) == ("refused", why)
    assert {row["verdict"] for row in refused["table"]} == {"refused"}, "nobody serves: it says why"


async def test_the_task_launches_a_fleet_and_admits_it(
    probe: RenderingProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.serving.task.get_run_logger", LineLogger)
    monkeypatch.setattr("tasks.serving.task.read_settings", lambda: Settings(home=tmp_path))
    config = SIMULATED.model_copy(update={"sglang_version": "0.5.23"})
    try:
        found = await ensure_fleet.fn(config, MODEL, probe)
        assert [each.capability for each in found] == ["chat", "chat"]
        assert await ensure_fleet.fn(config, MODEL, probe) == found
    finally:
        fleet_down(tmp_path / "fleet")


async def test_a_cancelled_task_does_not_wait_for_the_servers(
    probe: RenderingProbe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = LineLogger()
    monkeypatch.setattr("tasks.serving.task.get_run_logger", lambda: logger)
    monkeypatch.setattr("tasks.serving.task.read_settings", lambda: Settings(home=tmp_path))
    config = stub_config(tmp_path, "unhealthy", ready_timeout_seconds=3600)
    starting = asyncio.create_task(ensure_fleet.fn(config, MODEL, probe))
    try:
        await asyncio.to_thread(wait_until, lambda: "0 of 1 servers ready" in logger.lines)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        # The thread that waited ends by itself, long before the servers' own time limit.
        await asyncio.get_running_loop().shutdown_default_executor()
    finally:
        fleet_down(tmp_path / "fleet")


def test_the_task_is_never_cached() -> None:
    # A stored result would call dead servers healthy.
    assert ensure_fleet.cache_policy == NO_CACHE
    assert ensure_fleet.persist_result is False
