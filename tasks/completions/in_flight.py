"""Requests that wait for their answers, and what takes one back: its deadline, or a stalled server.

Enters: the task of each request, its server and its deadline. Leaves: the answer, or why it was
taken back. It exists because a timer a request costs a tenth of what aiohttp itself does: one
alarm, set to the earliest deadline, serves all. Where that request was answered in time, it is set
to the next one.
"""

from __future__ import annotations

import asyncio
import math
from types import TracebackType
from typing import Any, Self

from tasks.completions.wire import RequestFailed

_RING_AGAIN_SECONDS = 1.0


class Stalled(RequestFailed):
    """The server generates nothing while it holds requests; this one was taken back."""


class DeadlineExceeded(RequestFailed):
    """The answer did not come in time; the request was aborted at the server."""


class Waiting:
    """A request under way in the task that made it, for the time of a with block.

    The block's end forgets it. Where it was taken back, and its task cancelled by nobody else, it
    raises why; a task that swallowed the cancellation goes on as if there had been none.
    """

    __slots__ = ("_among", "_n_cancelled", "base_url", "deadline", "failure", "seconds", "task")

    def __init__(
        self, among: dict[Waiting, None], task: asyncio.Task[Any], base_url: str, seconds: float
    ) -> None:
        self.task = task
        self.base_url = base_url
        self.seconds = seconds
        self.deadline = task.get_loop().time() + seconds
        self.failure: RequestFailed | None = None
        self._among = among
        self._n_cancelled = task.cancelling()

    def take_back(self, failure: RequestFailed) -> None:
        """Cancel the request; again, if it goes on although it was cancelled before."""
        if self.failure is None:
            self.failure = failure
        else:
            self.task.uncancel()
        self.task.cancel()

    def __enter__(self) -> Self:
        self._among[self] = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._among[self]
        if self.failure is None:
            return
        is_ours = self.task.uncancel() <= self._n_cancelled
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise self.failure from None


class InFlight:
    """The requests of one client, all on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Waiting, None] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def hold(self, base_url: str, seconds: float) -> Waiting:
        """Hold the request that the running task is about to send: `with in_flight.hold(...)`.

        Args:
            base_url: Its server.
            seconds: How long from now it may take.

        Raises:
            RequestFailed: on leaving: DeadlineExceeded or Stalled.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine that runs has its task
        waiting = Waiting(self._waiting, task, base_url, seconds)
        if waiting.deadline < self._rings_at:
            self._set_alarm(waiting.deadline)
        return waiting

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

    def _set_alarm(self, at: float) -> None:
        self.close()
        self._alarm, self._rings_at = asyncio.get_running_loop().call_at(at, self._ring), at

    def _ring(self) -> None:
        self.close()
        now = asyncio.get_running_loop().time()
        next_at = math.inf
        for waiting in self._waiting:
            if waiting.deadline > now:
                next_at = min(next_at, waiting.deadline)
                continue
            waiting.take_back(DeadlineExceeded(f"no answer within {waiting.seconds:.0f} s"))
            # A library may swallow the cancellation: then it comes again.
            next_at = min(next_at, now + _RING_AGAIN_SECONDS)
        if next_at < math.inf:
            self._set_alarm(next_at)
