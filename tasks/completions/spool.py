"""The spool's bound: a store that is slow slows the run, and does not fill the disk.

Enters: the folder of a plan's journals, a limit in bytes, and the chunks that want to open. Leaves:
leave to open. It exists because servers answer as fast as they can while parts wait to be sent: a
chunk keeps its journal and its part on the disk until the store has acknowledged it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ASIDE = ".aside"
"""Ends the name of a chunk's folder whose journals no run reads any more."""
_LOOK_SECONDS = 0.5


class Spool:
    """Opens chunks while there is room for one more."""

    def __init__(self, folder: Path, limit_bytes: int, tell: Callable[[str], None]) -> None:
        """Take the folder to keep an eye on, which need not be there yet, and whom to tell."""
        self._folder = folder
        self._limit = limit_bytes
        self._tell = tell
        self._n_open = 0
        self._largest = 0
        self._changed = asyncio.Event()
        self._was_told = False
        self._looking: asyncio.Task[None]

    @asynccontextmanager
    async def admit(self) -> AsyncIterator[None]:
        """Wait until there is room for one more chunk, and count it as open inside.

        One is always let in: it alone is as small as it can get. What a chunk will take is told by
        the largest one so far, so that those which have just opened count in full.
        """
        while not self._has_room():
            if not self._was_told:
                self._was_told = True
                self._tell(
                    f"the store is slower than the servers: {self._folder} has no room for one "
                    "more chunk under generation.spool_gib, and chunks wait for it"
                )
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_SECONDS)
        self._n_open += 1
        if self._n_open == 1:
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._n_open -= 1
            if not self._n_open:
                self._looking.cancel()
            self._changed.set()

    async def _look(self) -> None:
        """Learn how large a chunk gets, before the first one that is to wait asks."""
        while True:
            self._largest = max([self._largest, *measure_spool(self._folder)])
            await asyncio.sleep(_LOOK_SECONDS)

    def _has_room(self) -> bool:
        if not self._n_open:
            return True
        sizes = measure_spool(self._folder)
        self._largest = max([self._largest, *sizes])
        still_to_come = max(0, self._n_open * self._largest - sum(sizes))
        # Before anything was measured there is nothing to go by; the canary is alone then.
        return sum(sizes) + still_to_come + self._largest <= self._limit


def measure_spool(folder: Path) -> list[int]:
    """Tell the bytes that each chunk's folder holds.

    What was set aside waits for no store, and is the user's to remove: it does not count.
    """
    try:
        with os.scandir(folder) as chunks:
            return [
                _measure(chunk.path)
                for chunk in chunks
                if chunk.is_dir() and not chunk.name.endswith(ASIDE)
            ]
    except FileNotFoundError:
        return []


def _measure(path: str) -> int:
    n_bytes = 0
    try:
        with os.scandir(path) as files:
            for file in files:
                n_bytes += file.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # it was published in between
        return n_bytes
    return n_bytes
