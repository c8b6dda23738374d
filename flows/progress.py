"""How far generation is, over all chunks: sums, speeds, and when it may end.

Enters: the chunks' Progress as it is told, and receipts of parts that were there. Leaves: a
RunProgress for whoever shows it. Pure but for the clock. The end is told as a band, weighted by
tokens; rows that an earlier run had made count as done and say nothing of this run's speed.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from tasks.completions.progress import Progress
from tasks.completions.roster import EndpointLoad
from tasks.storage.record import PartReceipt

_NOW_SECONDS = 60.0
_FEWEST_ANSWERS = 20
# Two standard errors: the band holds the sum of the lengths to come 19 times in 20.
_WIDTH = 2.0


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the last answer, as a band, and what it rests on."""

    low_seconds: float
    high_seconds: float
    basis: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far generation is.

    Attributes:
        n_replayed: Conversations done that an earlier run had made.
        n_output_tokens: Of all that are done.
        seconds: Since this run began to generate.
        tokens_per_second: This run's average.
        tokens_per_second_now: The same over the last minute.
        failures: Conversations by kind of failure.
        ended_chunk: The chunk whose part was just published, if this was told because of one.
    """

    n_done: int
    n_total: int
    n_failed: int
    n_replayed: int
    n_output_tokens: int
    n_in_flight: int
    seconds: float
    tokens_per_second: float
    tokens_per_second_now: float
    failures: dict[str, int]
    endpoints: tuple[EndpointLoad, ...]
    eta: Eta | None
    n_chunks_done: int
    n_chunks: int
    ended_chunk: int | None = None


@dataclass(frozen=True, slots=True)
class _ChunkSum:
    """What counts of one chunk."""

    n_done: int
    n_failed: int
    n_replayed: int
    n_output_tokens: int
    n_tokens_made: int
    sum_squared_tokens: int
    failures: dict[str, int]
    is_done: bool


class ProgressSum:
    """Adds the chunks' progress up to the run's, and tells it.

    One small record a chunk is kept, whatever the number of prompts.
    """

    def __init__(
        self,
        n_total: int,
        n_chunks: int,
        tell: Callable[[RunProgress], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the plan's conversations and chunks, and who is told."""
        self._n_total = n_total
        self._n_chunks = n_chunks
        self._tell = tell
        self._clock = clock
        self._chunks: dict[int, _ChunkSum] = {}
        self._endpoints: tuple[EndpointLoad, ...] = ()
        self._began = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])
        self.latest: RunProgress | None = None

    def take(self, state: Progress) -> None:
        """Take one chunk's progress and tell the run's."""
        self._endpoints = state.endpoints
        self._chunks[state.chunk_id] = _ChunkSum(
            n_done=state.n_done,
            n_failed=state.n_failed,
            n_replayed=state.n_replayed,
            n_output_tokens=state.n_output_tokens,
            n_tokens_made=state.n_tokens_made,
            sum_squared_tokens=state.sum_squared_tokens,
            failures=state.failures,
            is_done=state.is_done,
        )
        self._sum_up(state.chunk_id if state.is_done else None)

    def take_part(self, receipt: PartReceipt) -> None:
        """Take the part of a chunk; one that was not made here counts as replayed."""
        chunk_id, footer = receipt.header.chunk_id, receipt.footer
        known = self._chunks.get(chunk_id)
        if known is not None and known.is_done:
            return
        self._chunks[chunk_id] = _ChunkSum(
            n_done=footer.n_rows,
            n_failed=footer.n_failed,
            n_replayed=footer.n_rows,
            n_output_tokens=footer.n_output_tokens,
            n_tokens_made=0,
            sum_squared_tokens=0,
            failures=footer.failures,
            is_done=True,
        )
        self._sum_up(None)

    def _sum_up(self, ended_chunk: int | None) -> None:
        chunks = self._chunks.values()
        failures: Counter[str] = Counter()
        for chunk in chunks:
            failures.update(chunk.failures)
        now = self._clock()
        n_made = sum(chunk.n_tokens_made for chunk in chunks)
        n_done = sum(chunk.n_done for chunk in chunks)
        n_replayed = sum(chunk.n_replayed for chunk in chunks)
        seconds = now - self._began
        average = n_made / seconds if seconds else 0.0
        speed_now = self._measure(now, n_made)
        self.latest = RunProgress(
            n_done=n_done,
            n_total=self._n_total,
            n_failed=sum(chunk.n_failed for chunk in chunks),
            n_replayed=n_replayed,
            n_output_tokens=sum(chunk.n_output_tokens for chunk in chunks),
            n_in_flight=sum(endpoint.n_in_flight for endpoint in self._endpoints),
            seconds=seconds,
            tokens_per_second=average,
            tokens_per_second_now=speed_now,
            failures=dict(failures.most_common()),
            endpoints=self._endpoints,
            eta=estimate_end(
                n_left=self._n_total - n_done,
                n_made=n_done - n_replayed,
                n_tokens=n_made,
                sum_squared=sum(chunk.sum_squared_tokens for chunk in chunks),
                speeds=(average, speed_now),
            ),
            n_chunks_done=sum(chunk.is_done for chunk in chunks),
            n_chunks=self._n_chunks,
            ended_chunk=ended_chunk,
        )
        self._tell(self.latest)

    def _measure(self, now: float, n_made: int) -> float:
        """Give the speed over the last minute, in tokens a second."""
        if now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, n_made))
        while len(self._marks) > 2 and now - self._marks[1][0] >= _NOW_SECONDS:
            self._marks.popleft()
        then, n_then = self._marks[0]
        return (n_made - n_then) / (now - then) if now > then else 0.0


def estimate_end(
    *, n_left: int, n_made: int, n_tokens: int, sum_squared: int, speeds: tuple[float, float]
) -> Eta | None:
    """Say when the last answer may come: tokens that are left over tokens a second.

    Args:
        n_left: Conversations without an outcome.
        n_made: Conversations that this run generated.
        n_tokens: Their tokens.
        sum_squared: The sum of the squares of their tokens.
        speeds: Tokens a second: the average, and now.

    Returns:
        None where too little was seen, or nothing moves.
    """
    slow, fast = min(speeds), max(speeds)
    if n_made < _FEWEST_ANSWERS or slow <= 0:
        return None
    mean = n_tokens / n_made
    deviation = math.sqrt(max(0.0, sum_squared / n_made - mean * mean))
    # Of the mean itself, and of the lengths that are still to be drawn.
    spread = _WIDTH * deviation * math.sqrt(n_left * n_left / n_made + n_left)
    least = max(0.0, n_left * mean - spread)
    return Eta(
        low_seconds=least / fast,
        high_seconds=(n_left * mean + spread) / slow,
        basis=f"{n_made:,} conversations of this run, {mean:,.0f} tokens each, "
        f"{slow:,.0f} to {fast:,.0f} tokens/s",
    )
