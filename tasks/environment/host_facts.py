"""Reads the machine itself: disks, limits, shared memory, named files.

Enters: folders and paths. Leaves: plain facts. It changes nothing, and what cannot be read is a
fact of its own rather than an exception.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import psutil

from tasks.environment.box_facts import DiskFacts

_GIB = 2**30
_SHM = "/dev/shm"  # noqa: S108 # nosec B108


def read_disk(folder: Path) -> DiskFacts:
    """Read the file system that a folder lies on, or will lie on."""
    try:
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        resolved = existing.resolve()
        mounts = [
            mount
            for mount in psutil.disk_partitions(all=True)
            if resolved.is_relative_to(mount.mountpoint)
        ]
        mount = max(mounts, key=lambda each: len(each.mountpoint), default=None)
        return DiskFacts(
            path=str(folder),
            mountpoint=mount.mountpoint if mount else "",
            fs_type=mount.fstype if mount else "unknown",
            free_gib=psutil.disk_usage(str(resolved)).free / _GIB,
            writable=os.access(resolved, os.W_OK | os.X_OK),
        )
    except OSError:
        return DiskFacts(
            path=str(folder), mountpoint="", fs_type="unreadable", free_gib=0.0, writable=False
        )


def read_open_files() -> tuple[int, int]:
    """Read how many files may be open: the soft and the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _finite(soft), _finite(hard)


def read_shm_gib() -> float | None:
    """Read the size of /dev/shm in GiB; None: there is none."""
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize / _GIB


def find_missing(paths: Sequence[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tell which paths are not there, and which could not be looked at."""
    missing, unread = [], []
    for path in paths:
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            missing.append(str(path))
        except OSError:
            unread.append(str(path))
    return tuple(missing), tuple(unread)


def _finite(limit: int) -> int:
    return 2**31 if limit == resource.RLIM_INFINITY else limit
