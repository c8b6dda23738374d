"""Parts read whole before a run calls itself finished.

Enters: a Run and the receipts of its parts. Leaves: the damaged ones, which the store remembers. It
exists because a run is taken up by looking at sizes and ends alone: what was damaged in between is
found here, before it is assembled, merged and named in a manifest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from flows.stages.opened import Run
from tasks.storage.part import is_sound
from tasks.storage.record import PartReceipt


async def find_damaged_parts(run: Run, parts: Sequence[PartReceipt]) -> list[PartReceipt]:
    """Read each part that this process neither wrote nor read yet; give those that are damaged."""
    n_unread = sum(part.key not in run.store.known_parts for part in parts)
    if n_unread:
        run.narrator.stage("prove", f"{n_unread} parts are read whole")
    sound = await asyncio.gather(*(run.store.run(is_sound, run.store, part) for part in parts))
    damaged = [part for part, is_whole in zip(parts, sound, strict=True) if not is_whole]
    for part in damaged:
        run.narrator.note(f"{part.key} is damaged: a revision of it is generated")
    return damaged
