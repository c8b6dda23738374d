"""Clearing the spool of what dead processes left there, once the store has the part.

Enters: a chunk's folder, or a plan's. Leaves: nothing there but what a live process holds and what
was set aside. It exists because a process may die between publishing a part and removing its
journals, or in the middle of writing a part: no later run would look into that folder again.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from tasks.completions.journal import read_owner
from tasks.completions.spool import ASIDE


def sweep_plan(folder: Path) -> None:
    """Clear the folders of all chunks of a plan, each of which has its part."""
    for chunk in sorted(folder.iterdir()) if folder.is_dir() else ():
        if chunk.suffix != ASIDE:
            sweep_chunk(chunk)
    with suppress(OSError):  # something is kept there
        folder.rmdir()


def sweep_chunk(folder: Path) -> None:
    """Remove a published chunk's journals that nobody holds, and parts that nobody writes."""
    for path in sorted(folder.glob("*.jsonl")):
        if not _is_held(path):
            path.unlink(missing_ok=True)
    for path in sorted(folder.glob("*.part")):
        if not _is_alive(read_owner(path)):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # another process has a journal there, or was quicker
        folder.rmdir()


def _is_held(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _is_alive(owner: int | None) -> bool:
    """Whether a process of this host lives; of another host's (None) nothing is known: it may."""
    if owner is None:
        return True
    try:
        os.kill(owner, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
