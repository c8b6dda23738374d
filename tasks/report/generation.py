"""What generating took, counted while the answers of all parts pass by once.

Enters: one call an answer, one a failure. Leaves: GenerationFigures: speeds over time by server,
occupancy, latencies, retries by cause. Memory is flat: counters, and a Timeline a server. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tasks.report.composition import LENGTH_EDGES, bin_length
from tasks.report.quantile import Quantiles
from tasks.report.record import (
    EndpointFigure,
    FailureExample,
    GenerationFigures,
    Spread,
    StretchFigure,
)
from tasks.report.timeline import Load, Stretch, Timeline, find_stretches

N_STEPS = 120
"""How many steps a chart over time has at most."""

# A fleet outlives a flow that falls silent by about that long, and is held meanwhile.
_PAUSE_SECONDS = 900.0
_EXAMPLES_A_KIND = 4


@dataclass(slots=True)
class _Server:
    """What one server did."""

    n_requests: int = 0
    n_output_tokens: int = 0
    latency: Quantiles = field(default_factory=Quantiles)
    timeline: Timeline = field(default_factory=Timeline)


class GenerationCounter:
    """Counts answers and failures; `freeze` gives the figures so far."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._servers: dict[str, _Server] = {}
        self._n_timed = self._n_retried = 0
        self._n_prompt_tokens = self._n_output_tokens = self._n_reasoning_tokens = 0
        self._retries: Counter[str] = Counter()
        self._lengths = [0] * (len(LENGTH_EDGES) + 1)
        self._latency, self._stream = Quantiles(), Quantiles()
        self._examples: dict[str, list[FailureExample]] = {}

    def add_answer(
        self,
        endpoint: str,
        *,
        prompt_tokens: int,
        output_tokens: int,
        reasoning_tokens: int,
        latency_seconds: float,
        ended_at: float,
        retried: Iterable[str],
    ) -> None:
        """Count an answer; `ended_at` is 0 where it is not known."""
        self._n_prompt_tokens += prompt_tokens
        self._n_output_tokens += output_tokens
        self._n_reasoning_tokens += reasoning_tokens
        self._lengths[bin_length(output_tokens)] += 1
        if retried:
            self._n_retried += 1
            self._retries.update(retried)
        self._latency.add(latency_seconds)
        if latency_seconds > 0:
            self._stream.add(output_tokens / latency_seconds)
        server = self._servers.get(endpoint)
        if server is None:
            server = self._servers[endpoint] = _Server()
        server.n_requests += 1
        server.n_output_tokens += output_tokens
        server.latency.add(latency_seconds)
        if ended_at > 0:
            self._n_timed += 1
            server.timeline.add(ended_at - latency_seconds, ended_at, output_tokens)

    def add_failure(self, conversation: str, kind: str, message: str, n_attempts: int) -> None:
        """Keep the first few failures of each kind."""
        kept = self._examples.setdefault(kind, [])
        if len(kept) < _EXAMPLES_A_KIND:
            kept.append(
                FailureExample(
                    conversation=conversation, kind=kind, message=message, n_attempts=n_attempts
                )
            )

    def freeze(self, versions: Mapping[str, str], slots: Mapping[str, int]) -> GenerationFigures:
        """Give the figures.

        Args:
            versions: Server version by base url.
            slots: Requests at once by base url; one that is not known is left out.
        """
        servers = {url: self._servers.get(url, _Server()) for url in {*versions, *self._servers}}
        timelines = {url: server.timeline for url, server in servers.items()}
        stretches = find_stretches(timelines.values(), _PAUSE_SECONDS)
        seconds = sum(stretch.seconds for stretch in stretches)
        axis = _Axis(stretches, seconds / N_STEPS)
        figures, told = [], []
        in_flight = [0.0] * N_STEPS
        for url in sorted(servers):
            server, works = servers[url], _Works(stretches)
            speeds = [0.0] * N_STEPS
            for load in server.timeline.loads():
                works.add(load)
                for step, share in axis.split(load):
                    speeds[step] += load.n_tokens * share / axis.step_seconds
                    in_flight[step] += load.request_seconds * share / axis.step_seconds
            told.append((works, slots.get(url)))
            figures.append(
                EndpointFigure(
                    base_url=url,
                    server_version=versions.get(url, "unknown"),
                    slots=slots.get(url),
                    n_requests=server.n_requests,
                    n_output_tokens=server.n_output_tokens,
                    occupancy=_share_of_slots([(works, slots.get(url))]),
                    latency_p50=server.latency.at(0.5),
                    latency_p99=server.latency.at(0.99),
                    tokens_per_second=tuple(speeds) if works.request_seconds else (),
                )
            )
        return GenerationFigures(
            n_answers=sum(server.n_requests for server in servers.values()),
            n_timed=self._n_timed,
            n_prompt_tokens=self._n_prompt_tokens,
            n_output_tokens=self._n_output_tokens,
            n_reasoning_tokens=self._n_reasoning_tokens,
            n_retried=self._n_retried,
            retries=dict(sorted(self._retries.items())),
            answer_lengths=tuple(self._lengths),
            latency=_spread(self._latency),
            stream=_spread(self._stream),
            stretches=tuple(
                StretchFigure(
                    began_at=stretch.began_at,
                    seconds=stretch.seconds,
                    n_servers=sum(index in works.at_work for works, _ in told),
                )
                for index, stretch in enumerate(stretches)
            ),
            step_seconds=axis.step_seconds,
            in_flight=tuple(in_flight) if stretches else (),
            occupancy=_share_of_slots(told),
            endpoints=tuple(figures),
            examples=tuple(one for kind in sorted(self._examples) for one in self._examples[kind]),
        )


class _Axis:
    """Time with the pauses left out, in N_STEPS steps."""

    def __init__(self, stretches: tuple[Stretch, ...], step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self._stretches = stretches

    def split(self, load: Load) -> Iterable[tuple[int, float]]:
        """Give the steps that a load falls into, each with its share of it."""
        before = 0.0
        for stretch in self._stretches:
            if load.began_at < stretch.ended_at:
                break
            before += stretch.seconds
        start = (before + load.began_at - stretch.began_at) / self.step_seconds
        length = load.seconds / self.step_seconds
        step, end = int(start + 1e-9), start + length
        while step < end - 1e-9 and step < N_STEPS:
            yield step, (min(end, step + 1) - max(start, step)) / length
            step += 1


class _Works:
    """In which stretches a server was at work, and how long in all its requests took."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        self._stretches = stretches
        self.at_work: set[int] = set()
        self.request_seconds = 0.0

    def add(self, load: Load) -> None:
        """Take a load of its timeline."""
        self.request_seconds += load.request_seconds
        for index, stretch in enumerate(self._stretches):
            if stretch.began_at <= load.began_at < stretch.ended_at:
                self.at_work.add(index)

    @property
    def seconds(self) -> float:
        """How long the stretches were in which it was at work."""
        return sum(self._stretches[index].seconds for index in self.at_work)


def _share_of_slots(told: Iterable[tuple[_Works, int | None]]) -> float | None:
    """Give the share of slot-seconds in use; None where the slots of a server are not known."""
    in_use = held = 0.0
    for works, slots in told:
        if slots is None and works.at_work:
            return None
        in_use += works.request_seconds
        held += works.seconds * (slots or 0)
    # Requests that wait at a server count as in flight there; its slots are then full.
    return min(1.0, in_use / held) if held else None


def _spread(values: Quantiles) -> Spread | None:
    p50, p90, p99 = (values.at(share) for share in (0.5, 0.9, 0.99))
    if p50 is None or p90 is None or p99 is None:
        return None
    return Spread(p50=p50, p90=p90, p99=p99, largest=values.largest)
