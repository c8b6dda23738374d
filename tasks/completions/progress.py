"""How far a chunk is, told now and then while its answers come in.

Enters: each Outcome as it is counted. Leaves: Progress records, at most one a second a chunk. What
an earlier run had journalled is told apart, because it says nothing of how fast this run is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tasks.completions.dispatch import Dispatcher
from tasks.completions.record import Outcome
from tasks.completions.roster import EndpointLoad
from tasks.completions.tally import ChunkTally

_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a chunk is; `endpoints` are those of all chunks.

    Attributes:
        n_done: Conversations with an outcome, replayed and failed ones included.
        n_replayed: Those that an earlier run had journalled.
        n_output_tokens: Of all that are done.
        n_tokens_made: Of those that this run generated.
        sum_squared_tokens: Sum over this run's conversations of the square of their tokens.
        failures: How many by kind.
        is_done: Whether the chunk's part stands in the store.
    """

    chunk_id: int
    n_conversations: int
    n_done: int
    n_failed: int
    n_replayed: int
    n_output_tokens: int
    n_tokens_made: int
    sum_squared_tokens: int
    failures: dict[str, int]
    endpoints: tuple[EndpointLoad, ...]
    is_done: bool

    @property
    def n_in_flight(self) -> int:
        """Requests in flight, over all chunks."""
        return sum(endpoint.n_in_flight for endpoint in self.endpoints)


OnProgress = Callable[[Progress], None]


class ChunkProgress:
    """Tells of one chunk; made once its replayed outcomes are counted."""

    def __init__(
        self,
        chunk_id: int,
        n_conversations: int,
        tally: ChunkTally,
        dispatcher: Dispatcher,
        on_progress: OnProgress | None,
    ) -> None:
        """Take what is counted already as replayed."""
        self._chunk_id = chunk_id
        self._n_conversations = n_conversations
        self._tally = tally
        self._dispatcher = dispatcher
        self._on_progress = on_progress
        self._n_replayed = tally.n_done
        self._n_tokens_made = 0
        self._sum_squared = 0
        self._told_at = -_EVERY_SECONDS

    def note(self, outcome: Outcome) -> None:
        """Take an outcome that was just counted."""
        n_tokens = 0
        for completion in outcome.completions:
            n_tokens += completion.usage.completion_tokens
        self._n_tokens_made += n_tokens
        self._sum_squared += n_tokens * n_tokens
        if self._on_progress is None:
            return
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= _EVERY_SECONDS:
            self._told_at = now
            self.tell()

    def tell(self, *, is_done: bool = False) -> None:
        """Tell at once."""
        if self._on_progress is None:
            return
        tally = self._tally
        self._on_progress(
            Progress(
                chunk_id=self._chunk_id,
                n_conversations=self._n_conversations,
                n_done=tally.n_done,
                n_failed=tally.statuses["failed"],
                n_replayed=self._n_replayed,
                n_output_tokens=tally.n_output_tokens,
                n_tokens_made=self._n_tokens_made,
                sum_squared_tokens=self._sum_squared,
                failures=dict(tally.failures),
                endpoints=self._dispatcher.loads(),
                is_done=is_done,
            )
        )
