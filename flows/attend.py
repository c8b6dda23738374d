"""Says that a run is at work at its prefix, and tells of others that are.

Enters: an opened store. Leaves: word of its beginning and end in the store, and of others to the
user. Starting a run twice harms nothing; whoever did it should know.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from flows.narrate import Narrator
from tasks.errors import StoreError
from tasks.storage.presence import announce, describe_others, take_leave
from tasks.storage.store import ArtifactStore


@asynccontextmanager
async def attend(store: ArtifactStore, voice: Narrator) -> AsyncIterator[None]:
    """Be told of as at work inside the block."""
    run_id = await store.run(announce, store)
    try:
        for other in await store.run(lambda: list(describe_others(store, run_id))):
            voice.note(other)
        yield
    finally:
        with suppress(StoreError):  # it is told of as at work until then, and harms nothing
            await store.run(take_leave, store, run_id)
