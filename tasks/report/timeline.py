"""What servers did over time, gathered from single requests in any order.

Enters: one call a request: when it began and ended, and its tokens. Leaves: requests in flight and
tokens a second, bin by bin. It exists because the parts of a run hold their answers in the order of
the prompts, and because a run lasts for a second or for a week: the bins double their width when
they become too many, so that memory stays flat, and what was gathered before stays exact. Pure.

A request adds a step function: its weight from begin to end. Each end of it is kept as a change of
the weight and the area that the change makes within its bin; both add up when two bins become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

MOST_BINS = 4096
_FIRST_WIDTH_SECONDS = 0.25
# Less is what sums of floats leave behind where a request ends with its bin.
_LEAST_SECONDS = 1e-5


@dataclass(slots=True)
class _Bin:
    """Changes of weight within a bin: of requests in flight, and of tokens a second."""

    d_requests: float = 0.0
    a_requests: float = 0.0
    d_tokens: float = 0.0
    a_tokens: float = 0.0

    def change(self, requests: float, tokens: float, seconds_left: float) -> None:
        """Change both weights, `seconds_left` before the bin ends."""
        self.d_requests += requests
        self.a_requests += requests * seconds_left
        self.d_tokens += tokens
        self.a_tokens += tokens * seconds_left

    def absorb(self, other: _Bin, later_seconds: float) -> None:
        """Take in a bin that ends `later_seconds` before this one."""
        self.d_requests += other.d_requests
        self.a_requests += other.a_requests + other.d_requests * later_seconds
        self.d_tokens += other.d_tokens
        self.a_tokens += other.a_tokens + other.d_tokens * later_seconds


@dataclass(frozen=True, slots=True)
class Load:
    """What happened from `began_at` for `seconds`: request-seconds, and tokens."""

    began_at: float
    seconds: float
    request_seconds: float
    n_tokens: float


class Timeline:
    """Requests of one server, or of several, as they were in flight."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.width = _FIRST_WIDTH_SECONDS
        self._bins: dict[int, _Bin] = {}

    def add(self, began_at: float, ended_at: float, n_tokens: float) -> None:
        """Take one request; its tokens are spread evenly over its time.

        Args:
            began_at: When it was sent, in Unix seconds.
            ended_at: When it was answered; a request of no time at all is given a millisecond.
            n_tokens: Of its answer.
        """
        began_at = min(began_at, ended_at - 0.001)
        speed = n_tokens / (ended_at - began_at)
        self._change(began_at, 1.0, speed)
        self._change(ended_at, -1.0, -speed)
        if len(self._bins) > MOST_BINS:
            self.widen(2 * self.width)

    def widen(self, width: float) -> None:
        """Make the bins at least as wide as `width`, by doubling."""
        while self.width < width and self._bins:
            halves, self._bins = self._bins, {}
            for index, half in halves.items():
                whole = self._bins.setdefault(index // 2, _Bin())
                whole.absorb(half, 0.0 if index % 2 else self.width)
            self.width *= 2

    def loads(self) -> Iterator[Load]:
        """Give the load bin by bin, or over several where nothing changed, in order of time."""
        requests = tokens = 0.0
        n_open, before = 0, 0
        for index in sorted(self._bins):
            if n_open and index > before + 1:
                seconds = (index - before - 1) * self.width
                yield Load((before + 1) * self.width, seconds, requests * seconds, tokens * seconds)
            here = self._bins[index]
            area = requests * self.width + here.a_requests
            if area > _LEAST_SECONDS:
                n_tokens = max(0.0, tokens * self.width + here.a_tokens)
                yield Load(index * self.width, self.width, area, n_tokens)
            requests += here.d_requests
            tokens += here.d_tokens
            # Whole requests: what is left of sums of floats is no request.
            n_open, before = round(requests), index
            if not n_open:
                requests = tokens = 0.0

    def _change(self, at: float, requests: float, tokens: float) -> None:
        index = int(at // self.width)
        here = self._bins.get(index)
        if here is None:
            here = self._bins[index] = _Bin()
        here.change(requests, tokens, (index + 1) * self.width - at)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A time in which servers were at work, but for pauses shorter than they outlive a flow."""

    began_at: float
    ended_at: float

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.ended_at - self.began_at


def find_stretches(timelines: Iterable[Timeline], pause_seconds: float) -> tuple[Stretch, ...]:
    """Join the times in which any of the servers had a request in flight.

    Args:
        timelines: One a server.
        pause_seconds: Shorter pauses belong to the stretch around them.
    """
    stretches: list[Stretch] = []
    for load in merge(*(timeline.loads() for timeline in timelines), key=_began):
        began_at, ended_at = load.began_at, load.began_at + load.seconds
        if stretches and began_at - stretches[-1].ended_at <= pause_seconds:
            last = stretches.pop()
            stretches.append(Stretch(last.began_at, max(last.ended_at, ended_at)))
        else:
            stretches.append(Stretch(began_at, ended_at))
    return tuple(stretches)


def _began(load: Load) -> float:
    return load.began_at
