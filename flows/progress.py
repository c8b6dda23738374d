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
from dataclasses import dataclass, field

from tasks.completions.progress import Progress
from tasks.completions.roster import EndpointLoad
from tasks.storage.record import PartFooter, PartReceipt

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
        flags: Conversations of published parts by the gate that flagged them.
        n_judged: Conversations of published parts that gates have judged.
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
    flags: dict[str, int] = field(default_factory=dict)
    n_judged: int = 0
    ended_chunk: int | None = None


@dataclass(frozen=True, slots=True)
class _Made:
    """What this run generated: conversations, their tokens, and the sum of these squared."""

    n: int = 0
    n_tokens: int = 0
    sum_squared: int = 0

    def __add__(self, other: _Made) -> _Made:
        return _Made(
            self.n + other.n,
            self.n_tokens + other.n_tokens,
            self.sum_squared + other.sum_squared,
        )


@dataclass(frozen=True, slots=True)
class _ChunkSum:
    """What counts of one chunk.

    Attributes:
        n_replayed: Conversations that an earlier run had made; those that an earlier attempt of
            this one made are replayed as well, and are no less its own.
        n_replayed_now: What its latest attempt found in the journals.
        made_before: By attempts of this run before the latest one.
        made_now: By the latest attempt.
    """

    n_done: int
    n_failed: int
    n_replayed: int
    n_replayed_now: int
    n_output_tokens: int
    made_before: _Made
    made_now: _Made
    failures: dict[str, int]
    is_done: bool

    @property
    def made(self) -> _Made:
        return self.made_before + self.made_now


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
        self._footers: dict[int, PartFooter] = {}
        self._endpoints: tuple[EndpointLoad, ...] = ()
        self._began = clock()
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])
        self.latest: RunProgress | None = None

    def take(self, state: Progress) -> None:
        """Take one chunk's progress and tell the run's."""
        self._endpoints = state.endpoints
        made = _Made(state.n_done - state.n_replayed, state.n_tokens_made, state.sum_squared_tokens)
        n_replayed, before = state.n_replayed, _Made()
        known = self._chunks.get(state.chunk_id)
        if known is not None:
            is_new_attempt = (
                state.n_replayed != known.n_replayed_now or made.n_tokens < known.made_now.n_tokens
            )
            n_replayed = known.n_replayed
            before = known.made if is_new_attempt else known.made_before
        self._chunks[state.chunk_id] = _ChunkSum(
            n_done=state.n_done,
            n_failed=state.n_failed,
            n_replayed=n_replayed,
            n_replayed_now=state.n_replayed,
            n_output_tokens=state.n_output_tokens,
            made_before=before,
            made_now=made,
            failures=state.failures,
            is_done=state.is_done,
        )
        self._sum_up(state.chunk_id if state.is_done else None)

    def take_part(self, receipt: PartReceipt) -> None:
        """Take the part of a chunk; one that was not made here counts as replayed."""
        chunk_id, footer = receipt.header.chunk_id, receipt.footer
        self._footers[chunk_id] = footer
        known = self._chunks.get(chunk_id)
        if known is None or not known.is_done:
            made = _Made() if known is None else known.made
            n_replayed = max(0, footer.n_rows - made.n)
            self._chunks[chunk_id] = _ChunkSum(
                n_done=footer.n_rows,
                n_failed=footer.n_failed,
                n_replayed=n_replayed,
                n_replayed_now=n_replayed,
                n_output_tokens=footer.n_output_tokens,
                made_before=made,
                made_now=_Made(),
                failures=footer.failures,
                is_done=True,
            )
        self._sum_up(None)

    def _sum_up(self, ended_chunk: int | None) -> None:
        chunks = self._chunks.values()
        failures: Counter[str] = Counter()
        for chunk in chunks:
            failures.update(chunk.failures)
        flags: Counter[str] = Counter()
        for footer in self._footers.values():
            flags.update(footer.gates)
        now = self._clock()
        made = sum((chunk.made for chunk in chunks), _Made())
        n_done = sum(chunk.n_done for chunk in chunks)
        n_replayed = sum(chunk.n_replayed for chunk in chunks)
        seconds = now - self._began
        average = made.n_tokens / seconds if seconds else 0.0
        speed_now = self._measure(now, made.n_tokens)
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
                n_made=made.n,
                n_tokens=made.n_tokens,
                sum_squared=made.sum_squared,
                speeds=(average, speed_now),
            ),
            n_chunks_done=sum(chunk.is_done for chunk in chunks),
            n_chunks=self._n_chunks,
            flags=dict(flags),
            n_judged=sum(part.n_rows - part.n_failed for part in self._footers.values()),
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
