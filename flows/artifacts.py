"""Generation on Prefect's pages: a progress bar and a table, kept up to date while a block runs.

Enters: the newest RunProgress. Leaves: two artifacts, changed in place and no oftener than every
few seconds, because each change costs a call to the server. A server that does not take one loses
a picture and never a run.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import acreate_progress_artifact, acreate_table_artifact
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.exceptions import PrefectException

from flows.progress import RunProgress
from flows.view import tabulate_run
from tasks.report.task import artifact_slug

EVERY_SECONDS = 10.0
_CALL_SECONDS = 5.0
_log = logging.getLogger(__name__)


@asynccontextmanager
async def publish_progress(
    name: str, latest: Callable[[], RunProgress | None], every_seconds: float = EVERY_SECONDS
) -> AsyncIterator[None]:
    """Keep the artifacts of a run up to date inside the block.

    They are left at its last state; where it fails, at one of its last `every_seconds`.

    Args:
        name: The run's name, which their keys bear.
        latest: Gives what is to be shown.
        every_seconds: Shortest time between two changes.
    """
    board, ended = _Board(artifact_slug(name)), asyncio.Event()

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
    await board.show(latest())


class _Board:
    """The two artifacts; made when there is something to show."""

    def __init__(self, slug: str) -> None:
        self._slug = slug
        self._ids: tuple[UUID, UUID] | None = None
        self._shown: RunProgress | None = None

    async def show(self, state: RunProgress | None) -> None:
        if state is None or state == self._shown:
            return
        try:
            if self._ids is None:
                self._ids = await self._make(state)
            else:
                async with get_client() as client:
                    await _change(client, self._ids[0], _share_done(state))
                    await _change(client, self._ids[1], json.dumps(tabulate_run(state)))
            self._shown = state
        # RuntimeError is how Prefect says that there is no connection.
        except (PrefectException, HTTPError, RuntimeError) as error:
            _log.warning("the progress artifacts were not changed: %s", type(error).__name__)

    async def _make(self, state: RunProgress) -> tuple[UUID, UUID]:
        bar = await acreate_progress_artifact(
            progress=_share_done(state),
            key=f"progress-{self._slug}",
            description="Conversations with an outcome",
        )
        table = await acreate_table_artifact(
            table=tabulate_run(state),
            key=f"endpoints-{self._slug}",
            description="Generation: speeds, what is left, endpoints, failures",
        )
        assert isinstance(bar, UUID)  # noqa: S101  # narrows for mypy
        assert isinstance(table, UUID)  # noqa: S101
        return bar, table


async def _change(client: PrefectClient, artifact_id: UUID, data: Any) -> None:
    await client.update_artifact(artifact_id, ArtifactUpdate(data=data))


def _share_done(state: RunProgress) -> float:
    """Give the share of conversations that are done, in percent."""
    return round(100 * state.n_done / max(1, state.n_total), 2)
