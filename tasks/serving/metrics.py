"""A server's /metrics: how much it has generated, what is in flight, how full it is.

Enters: Prometheus text under sglang's names. Leaves: a ServerLoad, and from several of them whether
the server still makes progress. It exists because /health answers 200 while requests hang: only a
counter of tokens that stands still under load tells. Pure.

Source: /metrics of sglang 0.5.12 and 0.5.23, where `realtime_tokens_total` moves with each step and
`generation_tokens_total` only when a request ends.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"sglang:(\w+)(?:\{(.*?)\})? ([0-9.eE+-]+|NaN)$", re.MULTILINE)
_GENERATING = ('endpoint="/generate"', 'endpoint="/v1/chat/completions"')
_PROGRESS = ("realtime_tokens_total", "generation_tokens_total", "prompt_tokens_total")


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One reading, summed over ranks.

    Attributes:
        n_decoded: Tokens generated since the start, those of running requests included where the
            server counts them.
        n_progress: A sum that moves whenever anything is computed.
        n_in_flight: Requests accepted and not answered.
        token_usage: Share of the KV cache in use, of the fullest rank.
        n_retracted: Requests thrown out of the batch for want of memory, since the start.
    """

    n_decoded: float
    n_progress: float
    n_in_flight: int
    n_running: int
    n_queued: int
    token_usage: float
    n_retracted: int


def read_load(text: str) -> ServerLoad | None:
    """Read /metrics; None: it is not that of an sglang server with metrics on."""
    sums: dict[str, float] = {}
    n_decoded, n_active, token_usage = 0.0, None, 0.0
    for name, labels, value in _SAMPLE.findall(text):
        number = float(value)
        if math.isnan(number):  # not measured
            continue
        sums[name] = sums.get(name, 0.0) + number
        if name == "realtime_tokens_total" and 'mode="decode"' in labels:
            n_decoded += number
        elif name == "http_requests_active" and any(path in labels for path in _GENERATING):
            n_active = int(number) + (n_active or 0)
        elif name == "token_usage":
            token_usage = max(token_usage, number)
    if "num_running_reqs" not in sums:
        return None
    n_running, n_queued = int(sums["num_running_reqs"]), int(sums.get("num_queue_reqs", 0))
    return ServerLoad(
        n_decoded=n_decoded or sums.get("generation_tokens_total", 0.0),
        n_progress=sum(sums.get(name, 0.0) for name in _PROGRESS),
        # The gauges of the scheduler stand where it left them; HTTP's own count does not.
        n_in_flight=n_running + n_queued if n_active is None else n_active,
        n_running=n_running,
        n_queued=n_queued,
        token_usage=token_usage,
        n_retracted=int(sums.get("num_retracted_requests_total", 0)),
    )


@dataclass(slots=True)
class StallWatch:
    """Tells a server that holds requests and computes nothing; times in seconds of one clock."""

    stall_seconds: float
    _last: ServerLoad | None = None
    _since: float = field(default=0.0)

    def note(self, load: ServerLoad, now: float) -> bool:
        """Take a reading; whether nothing has moved under load for `stall_seconds`."""
        last = self._last
        self._last = load
        if (
            last is None
            or load.n_in_flight == 0
            or last.n_in_flight == 0
            or load.n_progress != last.n_progress
        ):
            self._since = now
        return now - self._since >= self.stall_seconds
