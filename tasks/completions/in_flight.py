"""Requests that wait for their answers, and what takes one back: its deadline, or a stalled server.

Enters: the task of each request, its server and its deadline. Leaves: a cancelled task, and why. It
exists because a timer a request costs a tenth of what aiohttp itself does: one alarm, set to the
earliest deadline, serves all. Where that request was answered in time, it is set to the next one.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

from tasks.completions.wire import RequestFailed


class Stalled(RequestFailed):
    """The server generates nothing while it holds requests; this one was taken back."""


class DeadlineExceeded(RequestFailed):
    """The answer did not come in time; the request was aborted at the server."""


class Waiting:
    """A request under way in the task that made it."""

    __slots__ = ("base_url", "deadline", "failure", "seconds", "task")

    def __init__(
        self, task: asyncio.Task[Any], base_url: str, began: float, seconds: float
    ) -> None:
        self.task = task
        self.base_url = base_url
        self.seconds = seconds
        self.deadline = began + seconds
        self.failure: RequestFailed | None = None

    def take_back(self, failure: RequestFailed) -> None:
        """Cancel the request, unless it was taken back before."""
        if self.failure is None:
            self.failure = failure
            self.task.cancel()


class InFlight:
    """The requests of one client, all on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def begin(self, base_url: str, seconds: float) -> Waiting:
        """Count the request that the running task is about to send.

        Args:
            base_url: Its server.
            seconds: How long from now it may take.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine that runs has its task
        loop = task.get_loop()
        waiting = Waiting(task, base_url, loop.time(), seconds)
        self._waiting[waiting] = None
        if waiting.deadline < self._rings_at:
            self._set_alarm(loop, waiting.deadline)
        return waiting

    def end(self, waiting: Waiting) -> None:
        """Forget a request, however it ended."""
        del self._waiting[waiting]

    def take_back_all(self, base_url: str) -> None:
        """Take back what a stalled server has not answered."""
        for waiting in self._waiting:
            if waiting.base_url == base_url:
                waiting.take_back(Stalled("the server generates nothing"))

    def close(self) -> None:
        """Put the alarm off."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._rings_at = None, math.inf

    def _set_alarm(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        self.close()
        self._alarm, self._rings_at = loop.call_at(at, self._ring, loop), at

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        now = loop.time()
        next_deadline = math.inf
        for waiting in self._waiting:
            if waiting.failure is not None:
                continue
            if waiting.deadline <= now:
                what = f"no answer within {waiting.seconds:.0f} s"
                waiting.take_back(DeadlineExceeded(what))
            else:
                next_deadline = min(next_deadline, waiting.deadline)
        if next_deadline < math.inf:
            self._set_alarm(loop, next_deadline)
