"""Generation on Prefect's pages: artifacts changed in place, that never end a run."""

from __future__ import annotations

import asyncio
import gc
import json
from contextlib import nullcontext
from dataclasses import replace
from typing import cast
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.artifacts import Artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import Artifact as StoredArtifact
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.pages.artifacts import publish_progress
from flows.pages.progress import RunProgress
from tasks.completions.config import GatesConfig
from tests.support.simulator import find_free_port
from tests.unit.test_flows_progress import see_run

# Prefect's client leaves the socket of its events to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.usefixtures("prefect_api")
async def test_the_artifacts_are_changed_in_place_and_end_with_the_last_state() -> None:
    latest: list[RunProgress] = [replace(see_run(), n_judged=100)]

    @flow
    async def run() -> None:
        async with publish_progress(
            "Autumn Run", GatesConfig(), lambda: latest[-1], every_seconds=0.05
        ):
            async with asyncio.timeout(120):
                while await Artifact.aget("endpoints-autumn-run") is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            latest.append(replace(latest[-1], n_done=200))

    await run()
    bar, table = await read("progress-autumn-run"), await read("endpoints-autumn-run")
    plot, failures = await read("throughput-autumn-run"), await read("failures-autumn-run")
    gates = await read("gates-autumn-run")
    assert "data:image/svg+xml;base64," in str(plot.data)
    assert "tokens/s on average" in str(plot.data)
    assert float(str(bar.data)) == 100
    rows = {row["what"]: row["value"] for row in json.loads(cast("str", table.data))}
    assert rows["conversations"] == "200 of 200"
    async with get_client() as client:
        made = [bar, table, plot, failures, gates]
        keys = ArtifactFilter(key=ArtifactFilterKey(any_=[each.key or "" for each in made]))
        assert len(await client.read_artifacts(artifact_filter=keys)) == len(made)
    gc.collect()  # so that those sockets are closed while their warning is expected


@pytest.mark.parametrize("n_judged", [0, 100])
async def test_what_gates_said_is_not_replaced_by_a_retry_that_judges_nothing(
    monkeypatch: pytest.MonkeyPatch, n_judged: int
) -> None:
    made: list[str] = []

    async def put(_: object, key: str, *__: object) -> UUID:
        made.append(key)
        return uuid4()

    monkeypatch.setattr("flows.pages.artifacts.get_client", nullcontext)
    monkeypatch.setattr("flows.pages.artifacts._put", put)
    state = replace(see_run(), n_judged=n_judged)
    async with publish_progress("retry", GatesConfig(), lambda: state):
        pass
    assert ("gates-retry" in made) == bool(n_judged)
    assert "progress-retry" in made


@pytest.mark.usefixtures("prefect_api")
async def test_a_server_that_is_away_costs_a_picture_and_no_run() -> None:
    away = f"http://127.0.0.1:{find_free_port()}/api"

    @flow
    async def run() -> None:
        with temporary_settings({PREFECT_API_URL: away}):
            async with publish_progress("away", GatesConfig(), see_run, every_seconds=0.01):
                await asyncio.sleep(0.05)

    await run()


async def read(key: str) -> StoredArtifact:
    found = await Artifact.aget(key)
    assert found is not None
    return found
