"""Says that a run is at work at its prefix, how it ended, and tells of others that are.

Enters: an opened store. Leaves: word of its beginning and end in the store, and of others to the
user. Starting a run twice harms nothing; whoever did it should know. How a run ended stands in the
store because Prefect's database may be lost, and `draftmill status --root` must tell it still.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State

from flows.pages.narrate import Narrator
from tasks.errors import DraftmillError, StoreError
from tasks.storage.presence import announce, describe_others, take_leave
from tasks.storage.store import ArtifactStore

_MOST_CHARS = 1000


@dataclass(slots=True)
class Farewell:
    """The words that a run leaves by."""

    state: str = ""
    message: str = ""

    def say(self, state: State[Any]) -> State[Any]:
        """Leave by a state's name and message; gives the state."""
        self._note(state.name or "", (state.message or "").replace("\n  ", "; "))
        return state

    def blame(self, error: BaseException) -> None:
        """Leave by an error."""
        if isinstance(error, asyncio.CancelledError):
            self._note("Cancelled", "")
        else:
            # Another error's text may hold what a stranger wrote.
            known = isinstance(error, DraftmillError)
            self._note(type(error).__name__, str(error) if known else "")

    def _note(self, state: str, message: str) -> None:
        line = message.partition("\n")[0]
        # A command that is cut off must not look whole.
        self.message = line if len(line) <= _MOST_CHARS else f"{line[:_MOST_CHARS]}..."
        self.state = state


@asynccontextmanager
async def attend(store: ArtifactStore, voice: Narrator) -> AsyncIterator[Farewell]:
    """Be told of as at work inside the block; it ends by what is said, else by its error."""
    run_id = await store.run(announce, store)
    farewell = Farewell()
    try:
        for other in await store.run(lambda: list(describe_others(store, run_id))):
            voice.note(other)
        yield farewell
    except BaseException as error:
        farewell.blame(error)
        raise
    finally:
        with suppress(StoreError):  # it is told of as at work until then, and harms nothing
            await store.run(take_leave, store, run_id, farewell.state, farewell.message)
