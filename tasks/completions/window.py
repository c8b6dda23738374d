"""How many chunks are open at once: as many as keep every slot full.

Enters: chunks that want to begin, and word of each conversation that began. Leaves: leave to begin.
It exists because a chunk in its tail cannot fill the slots alone, and because opening every chunk
at once would hold all prompts in memory and finish none of them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class ChunkWindow:
    """Opens the next chunk when the open ones are running out of work for the servers."""

    def __init__(self, capacity: Callable[[], int], n_waiting: Callable[[], int]) -> None:
        """Take how to ask for the number of slots, and of requests that wait for one."""
        self._capacity = capacity
        self._n_waiting = n_waiting
        self._left: dict[int, int] = {}
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._n_asked = 0

    @property
    def n_open(self) -> int:
        """Chunks open now."""
        return len(self._left)

    @asynccontextmanager
    async def open_chunk(self, chunk_id: int, n_conversations: int) -> AsyncIterator[None]:
        """Wait until the chunk's turn, oldest first, and keep it open inside.

        Another chunk opens when less work waits than there are slots: one full set of them is what
        a chunk may take to start without a slot falling idle.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._n_asked += 1
        heapq.heappush(self._waiting, (chunk_id, self._n_asked, n_conversations, future))
        self.update()
        try:
            await future
            yield
        finally:
            future.cancel()
            self._left.pop(chunk_id, None)
            self.update()

    def note_begun(self, chunk_id: int, n_conversations: int = 1) -> None:
        """Count conversations of an open chunk that began, or needed no beginning."""
        if chunk_id in self._left:
            self._left[chunk_id] = max(0, self._left[chunk_id] - n_conversations)
            self.update()

    def update(self) -> None:
        """Open what may be opened now; called whenever work was taken."""
        if not self._waiting:
            return
        while self._waiting and (
            not self._left
            or sum(self._left.values()) + self._n_waiting() < max(1, self._capacity())
        ):
            chunk_id, _, n_conversations, future = heapq.heappop(self._waiting)
            if not future.done():
                self._left[chunk_id] = n_conversations
                future.set_result(None)
