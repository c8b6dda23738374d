"""How far generation is, over all chunks: sums, speeds, and when it may end.

Enters: the chunks' Progress as it is told, and receipts of parts that were there. Leaves: a
RunProgress for whoever shows it. Pure but for the clock. Rows that an earlier run had made count as
done and say nothing of this run's speed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from flows.pages.eta import Eta, estimate_end
from tasks.completions.progress import Progress
from tasks.completions.roster import EndpointLoad
from tasks.storage.record import PartFooter, PartReceipt

_NOW_SECONDS = 60.0


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

    def times(self, factor: int) -> _Made:
        return _Made(self.n * factor, self.n_tokens * factor, self.sum_squared * factor)


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


@dataclass(slots=True)
class _Totals:
    """The sums over all chunks; one changed chunk is taken out and put in anew.

    Adding up every chunk at each word of one of them would grow with their square.
    """

    n_done: int = 0
    n_failed: int = 0
    n_replayed: int = 0
    n_output_tokens: int = 0
    n_chunks_done: int = 0
    made: _Made = field(default_factory=_Made)
    failures: Counter[str] = field(default_factory=Counter)

    def replace(self, old: _ChunkSum | None, new: _ChunkSum) -> None:
        if old is not None:
            self._shift(old, -1)
        self._shift(new, 1)

    def _shift(self, chunk: _ChunkSum, sign: int) -> None:
        self.n_done += sign * chunk.n_done
        self.n_failed += sign * chunk.n_failed
        self.n_replayed += sign * chunk.n_replayed
        self.n_output_tokens += sign * chunk.n_output_tokens
        self.n_chunks_done += sign * chunk.is_done
        self.made += chunk.made.times(sign)
        for kind, n in chunk.failures.items():
            self.failures[kind] += sign * n


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
        self._totals = _Totals()
        self._judged: dict[int, PartFooter] = {}
        self._n_judged = 0
        self._flags: Counter[str] = Counter()
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
        chunk = _ChunkSum(
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
        self._totals.replace(known, chunk)
        self._chunks[state.chunk_id] = chunk
        self._sum_up(state.chunk_id if state.is_done else None)

    def take_part(self, receipt: PartReceipt) -> None:
        """Take the part of a chunk; one that was not made here counts as replayed."""
        chunk_id, footer = receipt.header.chunk_id, receipt.footer
        self._judge(chunk_id, footer)
        known = self._chunks.get(chunk_id)
        if known is None or not known.is_done:
            made = _Made() if known is None else known.made
            n_replayed = max(0, footer.n_rows - made.n)
            chunk = _ChunkSum(
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
            self._totals.replace(known, chunk)
            self._chunks[chunk_id] = chunk
        self._sum_up(None)

    def _judge(self, chunk_id: int, footer: PartFooter) -> None:
        """Count what the gates flagged of a part; a later one of the same chunk stands for it."""
        if (before := self._judged.get(chunk_id)) is not None:
            self._n_judged -= before.n_rows - before.n_failed
            self._flags.subtract(before.gates)
        self._judged[chunk_id] = footer
        self._n_judged += footer.n_rows - footer.n_failed
        self._flags.update(footer.gates)

    def _sum_up(self, ended_chunk: int | None) -> None:
        totals, made = self._totals, self._totals.made
        now = self._clock()
        seconds = now - self._began
        average = made.n_tokens / seconds if seconds else 0.0
        speed_now = self._measure(now, made.n_tokens)
        self.latest = RunProgress(
            n_done=totals.n_done,
            n_total=self._n_total,
            n_failed=totals.n_failed,
            n_replayed=totals.n_replayed,
            n_output_tokens=totals.n_output_tokens,
            n_in_flight=sum(endpoint.n_in_flight for endpoint in self._endpoints),
            seconds=seconds,
            tokens_per_second=average,
            tokens_per_second_now=speed_now,
            failures=dict((+totals.failures).most_common()),
            endpoints=self._endpoints,
            eta=estimate_end(
                n_left=self._n_total - totals.n_done,
                n_made=made.n,
                n_tokens=made.n_tokens,
                sum_squared=made.sum_squared,
                speeds=(average, speed_now),
            ),
            n_chunks_done=totals.n_chunks_done,
            n_chunks=self._n_chunks,
            flags=dict(self._flags),
            n_judged=self._n_judged,
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
