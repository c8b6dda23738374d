"""What automations hear of a run while it generates: progress, a later end, a lost server.

Enters: the newest RunProgress, now and then. Leaves: events, each once an episode, so that whoever
is told of them is told once. `deployments/automations.yaml` turns them into notifications; its
alarm for a run without progress rests on the silence between two `draftmill.run.progress`. They
are events of the flow run, so that its crash, which Prefect tells, ends that silence as well.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from prefect.events.utilities import emit_event
from prefect.runtime import flow_run

from flows.pages.progress import RunProgress

EVERY_SECONDS = 60.0
# A run tells of a later end when even its earliest one lies this share past what it had promised.
_SLIP = 0.10
# A server that is back within this time was not lost.
_LOST_SECONDS = 120.0
_RUN = "prefect.flow-run."
_SERVER = "draftmill.server."
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """One event: its name, whose it is (`run` or a base url), and what it says."""

    event: str
    of: str
    payload: dict[str, Any]


@dataclass(slots=True)
class Watcher:
    """Judges one state after another; pure."""

    _n_done: int = -1
    _promised_seconds: float | None = None
    _away_since: dict[str, float] = field(default_factory=dict)
    _told_lost: set[str] = field(default_factory=set)

    def judge(self, state: RunProgress, now: float) -> list[Notice]:
        """Give the notices that this state is worth; `now` in seconds on any steady clock."""
        return [
            *self._judge_progress(state),
            *self._judge_end(state),
            *self._judge_servers(state, now),
        ]

    def _judge_progress(self, state: RunProgress) -> list[Notice]:
        if state.n_done <= self._n_done:
            return []
        self._n_done = state.n_done
        payload = {"n_done": state.n_done, "n_total": state.n_total, "n_failed": state.n_failed}
        return [Notice("draftmill.run.progress", "run", payload)]

    def _judge_end(self, state: RunProgress) -> list[Notice]:
        if state.eta is None:
            return []
        if self._promised_seconds is None:
            self._promised_seconds = state.seconds + state.eta.high_seconds
            return []
        earliest = state.seconds + state.eta.low_seconds
        if earliest <= (1 + _SLIP) * self._promised_seconds:
            return []
        message = (
            f"it had said {_hours(self._promised_seconds)} in all at most, and needs "
            f"{_hours(earliest)} at least ({state.eta.basis})"
        )
        self._promised_seconds = state.seconds + state.eta.high_seconds
        return [Notice("draftmill.run.eta-slipped", "run", {"message": message})]

    def _judge_servers(self, state: RunProgress, now: float) -> list[Notice]:
        notices = []
        for endpoint in state.endpoints:
            url = endpoint.base_url
            if endpoint.state == "admitted":
                self._away_since.pop(url, None)
                self._told_lost.discard(url)
                continue
            since = self._away_since.setdefault(url, now)
            if now - since >= _LOST_SECONDS and url not in self._told_lost:
                self._told_lost.add(url)
                message = f"no request for {now - since:.0f} s; {endpoint.n_errors:,} errors so far"
                notices.append(Notice("draftmill.server.lost", url, {"message": message}))
        return notices


@asynccontextmanager
async def tell_automations(
    name: str, latest: Callable[[], RunProgress | None], every_seconds: float = EVERY_SECONDS
) -> AsyncIterator[None]:
    """Send a run's events while the block runs, and that it has ended.

    Args:
        name: The run's name, for people.
        latest: Gives the newest state.
        every_seconds: Time between two looks.
    """
    watcher = Watcher()
    run_id = str(flow_run.id or name)

    def look() -> None:
        state = latest()
        for notice in watcher.judge(state, time.monotonic()) if state is not None else ():
            _send(notice, name, run_id)

    async def keep() -> None:
        while True:
            look()
            await asyncio.sleep(every_seconds)

    keeping = asyncio.create_task(keep())
    try:
        yield
    finally:
        keeping.cancel()
        (end,) = await asyncio.gather(keeping, return_exceptions=True)
        if isinstance(end, Exception):
            _log.error("the run's events stood still", exc_info=end)
        _send(Notice("draftmill.run.ended", "run", {}), name, run_id)


def _send(notice: Notice, name: str, run_id: str) -> None:
    of_run = notice.of == "run"
    emit_event(
        notice.event,
        resource={
            "prefect.resource.id": f"{_RUN}{run_id}" if of_run else f"{_SERVER}{notice.of}",
            "prefect.resource.name": name if of_run else notice.of,
        },
        payload=notice.payload,
    )


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:,.1f} h"
