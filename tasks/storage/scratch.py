"""Folders for work in progress on the local disk, swept when their owner is dead.

Enters: the folder that they lie in. Leaves: a fresh folder, gone at the end. It exists because a
SIGKILL leaves what it was working on: each folder is held by a lock, which the kernel lets go with
the process, and whoever comes next removes those that nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "work-"
_LOCK = "lock"


@contextmanager
def open_scratch(spool_dir: Path) -> Iterator[Path]:
    """Make a folder for the time of a with block, and remove those of dead processes.

    Args:
        spool_dir: The folder that holds them; made if need be, for this user alone.
    """
    spool_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(spool_dir)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=spool_dir))
    with (folder / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _sweep(spool_dir: Path) -> None:
    for folder in spool_dir.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        # Without a lock: it is being made at this moment, or its owner died in between. An empty
        # folder costs nothing and may stay.
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
