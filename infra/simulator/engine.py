"""A batch engine in virtual time: how long a request takes, and what runs beside what.

Enters: requests with the number of tokens that each will generate. Leaves: their end, or the count
of tokens generated when they were aborted. One decoding step gives one token to every running
request and lasts base + slope * running; at most `max_running` run, the rest wait first come,
first served. It exists so that 512 requests in flight cost one timer and a heap instead of a task
a token: the clock of the batch counts steps, and each request ends at a known step.
Prefill takes no time here.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from dataclasses import dataclass, field

_MIN_STEP_SECONDS = 1e-9


@dataclass(slots=True, eq=False)
class Job:
    """One generation: `ended` resolves to the number of tokens generated."""

    rid: str
    n_tokens: int
    ended: asyncio.Future[int]
    is_over: bool = False
    aborted: bool = False
    started_step: float | None = None
    submitted_at: float = field(default_factory=time.time)
    started_at: float = 0.0


class Engine:
    """The running batch and its queue."""

    def __init__(
        self,
        *,
        max_running: int,
        step_base_seconds: float,
        step_slope_seconds: float,
        time_scale: float,
    ) -> None:
        """Set the speed; `time_scale` is the wall seconds that a simulated second takes."""
        self._loop = asyncio.get_running_loop()
        self._max_running = max_running
        self._base = step_base_seconds * time_scale
        self._slope = step_slope_seconds * time_scale
        self._slowness = 1.0
        self._hung = False
        self._step = 0.0
        self._updated_at = self._loop.time()
        self._heap: list[tuple[float, int, Job]] = []
        self._n_submitted = 0
        self._queue: deque[Job] = deque()
        self._jobs: dict[str, list[Job]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._update_asked = False
        self.n_running = 0
        self.max_running_seen = 0
        self.max_in_flight_seen = 0
        self.busy_slot_seconds = 0.0
        self.n_decoded = 0.0

    @property
    def n_queued(self) -> int:
        """Requests waiting for a slot."""
        return sum(not job.is_over for job in self._queue)

    @property
    def n_in_flight(self) -> int:
        """Requests running or queued."""
        return sum(len(jobs) for jobs in self._jobs.values())

    @property
    def tokens_per_second(self) -> float:
        """Generation speed of the batch as it is now."""
        return 0.0 if self._hung else self.n_running / self._step_seconds()

    @property
    def n_held_tokens(self) -> int:
        """Tokens that the running requests have generated: what the (imaginary) cache holds."""
        running = (job for _, _, job in self._heap if not job.is_over)
        return int(sum(self._step - (job.started_step or 0.0) for job in running))

    def submit(self, rid: str, n_tokens: int) -> Job:
        """Queue a generation; it starts as soon as a slot is free."""
        job = Job(rid, n_tokens, self._loop.create_future())
        self._jobs.setdefault(rid, []).append(job)
        self.max_in_flight_seen = max(
            self.max_in_flight_seen, self.n_running + len(self._queue) + 1
        )
        self._queue.append(job)
        self._ask_update()
        return job

    def abort(self, rid: str) -> None:
        """End every generation whose request id starts with `rid`, as SGLang matches them."""
        keys = [key for key in self._jobs if key.startswith(rid)]
        self.cancel([job for key in keys for job in self._jobs[key]])

    def cancel(self, jobs: list[Job]) -> None:
        """End these generations: nobody waits for them any more."""
        self.settle()
        for job in jobs:
            self._abort_job(job)
        self._ask_update()

    def abort_all(self) -> None:
        """End every generation, queued ones included."""
        self.abort("")

    def set_speed(self, *, slowness: float, hung: bool) -> None:
        """Make every step `slowness` times longer, or stop the batch altogether."""
        self.settle()
        self._slowness = slowness
        self._hung = hung
        self._ask_update()

    async def wait_idle(self, limit_seconds: float) -> None:
        """Wait until nothing is in flight, at most `limit_seconds`."""
        ends = [job.ended for jobs in self._jobs.values() for job in jobs]
        if ends:
            await asyncio.wait(ends, timeout=limit_seconds)

    def _step_seconds(self) -> float:
        seconds = (self._base + self._slope * self.n_running) * self._slowness
        return max(seconds, _MIN_STEP_SECONDS)

    def settle(self) -> None:
        """Bring the step count and the busy time up to now."""
        now = self._loop.time()
        elapsed = now - self._updated_at
        self._updated_at = now
        self.busy_slot_seconds += elapsed * self.n_running
        if self.n_running and not self._hung:
            n_steps = elapsed / self._step_seconds()
            self._step += n_steps
            self.n_decoded += n_steps * self.n_running

    def _abort_job(self, job: Job) -> None:
        if job.is_over:
            return
        job.aborted = True
        n_done = 0
        if job.started_step is not None:
            # Its entry stays in the heap until its step comes, and is skipped there.
            n_done = min(job.n_tokens, int(self._step - job.started_step))
            self.n_running -= 1
        self._end(job, n_done)

    def _end(self, job: Job, n_tokens: int) -> None:
        jobs = self._jobs[job.rid]
        jobs.remove(job)
        if not jobs:
            del self._jobs[job.rid]
        job.is_over = True
        # Whoever waited may have been cancelled, and the future with it.
        if not job.ended.done():
            job.ended.set_result(n_tokens)

    def _ask_update(self) -> None:
        # Many requests arrive and end in one turn of the loop: the timer is set once for them all.
        if not self._update_asked:
            self._update_asked = True
            self._loop.call_soon(self._update)

    def _update(self) -> None:
        self._update_asked = False
        self.settle()
        self._admit()
        while self._heap and (
            self._heap[0][2].is_over or (self._heap[0][0] <= self._step and not self._hung)
        ):
            job = heapq.heappop(self._heap)[2]
            if not job.is_over:
                self.n_running -= 1
                self._end(job, job.n_tokens)
                self._admit()
        self._set_timer()

    def _admit(self) -> None:
        while self._queue and self.n_running < self._max_running:
            job = self._queue.popleft()
            if job.is_over:
                continue
            job.started_step = self._step
            job.started_at = time.time()
            self._n_submitted += 1
            heapq.heappush(self._heap, (self._step + job.n_tokens, self._n_submitted, job))
            self.n_running += 1
            self.max_running_seen = max(self.max_running_seen, self.n_running)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap and not self._hung:
            delay = max(0.0, self._heap[0][0] - self._step) * self._step_seconds()
            # A hair later than the step, so that rounding cannot wake us just before it.
            self._timer = self._loop.call_later(delay + 1e-6, self._update)
