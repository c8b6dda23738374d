"""Generation on Prefect's pages: how far it is, how fast, what failed and what gates flagged.

Enters: the newest RunProgress. Leaves: five artifacts of stable keys, changed in place and no
oftener than every few seconds, because each change costs a call to the server. A server that does
not take one loses a picture and never a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, NamedTuple
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import Artifact, MarkdownArtifact, ProgressArtifact, TableArtifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterKey,
)
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run

from flows.pages.plot import SpeedSeries, write_plot
from flows.pages.progress import RunProgress
from flows.pages.tables import tabulate_failures, tabulate_gates
from flows.pages.view import tabulate_run
from tasks.completions.config import GatesConfig
from tasks.report.task import artifact_slug

EVERY_SECONDS = 10.0
# The larger ones are changed at every so many looks.
_SELDOM = 6
_CALL_SECONDS = 5.0
# RuntimeError is how Prefect says that there is no connection.
_API_FAULTS = (PrefectException, HTTPError, RuntimeError)
_log = logging.getLogger(__name__)

Kind = Literal["progress", "table", "markdown"]
_FORMS: dict[Kind, Any] = {
    "progress": ProgressArtifact,
    "table": TableArtifact,
    "markdown": MarkdownArtifact,
}


class _Picture(NamedTuple):
    """One artifact: its key's beginning, its form, and how it is drawn; None leaves it as it is."""

    key: str
    kind: Kind
    description: str
    draw: Callable[[RunProgress], Any]
    is_seldom: bool = False


@asynccontextmanager
async def publish_progress(
    name: str,
    gates: GatesConfig,
    latest: Callable[[], RunProgress | None],
    every_seconds: float = EVERY_SECONDS,
) -> AsyncIterator[None]:
    """Keep the artifacts of a run up to date inside the block.

    They are left at its last state; where it fails, at one of its last `every_seconds`.

    Args:
        name: The run's name, which their keys bear.
        gates: Thresholds beside which the flags stand.
        latest: Gives what is to be shown.
        every_seconds: Shortest time between two changes.
    """
    board, ended = _Board(artifact_slug(name), gates), asyncio.Event()

    async def keep() -> None:
        while not ended.is_set():
            await board.show(latest())
            with suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), every_seconds)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        # Cut off while it makes the artifacts, it would leave some that nobody changes any more.
        ended.set()
        await asyncio.wait({keeping}, timeout=_CALL_SECONDS)
        keeping.cancel()
        (end,) = await asyncio.gather(keeping, return_exceptions=True)
        if isinstance(end, Exception):
            _log.error("the progress artifacts stood still", exc_info=end)
    await board.show(latest(), is_last=True)


async def put_artifact(key: str, kind: Kind, data: Any, description: str) -> None:
    """Make an artifact of the flow run, or change the one of that key which it made before.

    Where the server does not take it, that is said, and the run goes on.
    """
    try:
        async with get_client() as client:
            await _put(client, key, kind, data, description)
    except _API_FAULTS as error:
        _log.warning("the artifact %s was not made: %s", key, type(error).__name__)


class _Board:
    """The artifacts of generation; each is made when there is something to show."""

    def __init__(self, slug: str, gates: GatesConfig) -> None:
        self._slug = slug
        self._series = SpeedSeries()
        self._ids: dict[str, UUID] = {}
        self._shown: dict[str, Any] = {}
        self._n_looks = 0
        self._pictures = (
            _Picture("progress", "progress", "Conversations with an outcome", _share_done),
            _Picture(
                "endpoints",
                "table",
                "Generation: speeds, what is left, endpoints, failures",
                tabulate_run,
            ),
            _Picture(
                "throughput",
                "markdown",
                "Output tokens a second since this run began to generate",
                lambda _: write_plot(self._series),
                is_seldom=True,
            ),
            _Picture(
                "failures",
                "table",
                "Failed and partial conversations by kind",
                lambda state: tabulate_failures(state.failures, state.n_done),
                is_seldom=True,
            ),
            _Picture(
                "gates",
                "table",
                "Quality gates over the parts that are published",
                # A retry publishes no chunk's part: what gates said before it stays.
                lambda state: (
                    tabulate_gates(gates, state.flags, state.n_judged) if state.n_judged else None
                ),
                is_seldom=True,
            ),
        )

    async def show(self, state: RunProgress | None, *, is_last: bool = False) -> None:
        if state is None:
            return
        self._series.add(state.seconds, state.tokens_per_second * state.seconds)
        shows_all = is_last or self._n_looks % _SELDOM == 0
        self._n_looks += 1
        wanted = [picture for picture in self._pictures if shows_all or not picture.is_seldom]
        try:
            async with get_client() as client:
                for picture in wanted:
                    await self._show(client, picture, picture.draw(state))
        except _API_FAULTS as error:
            _log.warning("the progress artifacts were not changed: %s", type(error).__name__)

    async def _show(self, client: PrefectClient, picture: _Picture, data: Any) -> None:
        key = f"{picture.key}-{self._slug}"
        if data is None or self._shown.get(key) == data:
            return
        if key not in self._ids:
            self._ids[key] = await _put(client, key, picture.kind, data, picture.description)
        else:
            update = _change(picture.kind, data, picture.description)
            await client.update_artifact(self._ids[key], update)
        self._shown[key] = data


async def _put(client: PrefectClient, key: str, kind: Kind, data: Any, description: str) -> UUID:
    own = ArtifactFilter(
        key=ArtifactFilterKey(any_=[key]),
        flow_run_id=ArtifactFilterFlowRunId(any_=[UUID(str(flow_run.id))]),
    )
    for there in await client.read_artifacts(artifact_filter=own):
        await client.update_artifact(there.id, _change(kind, data, description))
        return there.id
    artifact: Artifact = _FORMS[kind](**{kind: data}, key=key, description=description)
    return (await artifact.acreate(client)).id


def _change(kind: Kind, data: Any, description: str) -> ArtifactUpdate:
    stored = json.dumps(data) if kind == "table" else data
    return ArtifactUpdate(data=stored, description=description)


def _share_done(state: RunProgress) -> float:
    """Give the share of conversations that are done, in percent."""
    return round(100 * state.n_done / max(1, state.n_total), 2)
