"""Swaps a composed CUDA home in and out: journalled, atomic, and undone byte for byte.

Enters: a HomePlan and the folder of composed homes. Leaves: `current`, a link to a whole home, or
what was there before. The journal is written before anything else is, and the link is replaced in
one step: whoever is killed in between leaves the home of before, or the new one, never half of one.

    cuda/homes/<name>/   the homes; a folder that begins with a dot is not finished
    cuda/current         link to the one in use
    cuda/jit/<hash>/     kernels that servers compile with it
    cuda/journal.json    what was applied, the newest last
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter

from tasks.environment.compose import HomePlan, is_whole, write_home
from tasks.environment.launch_env import CURRENT

_JOURNAL = "journal.json"


class _Entry(BaseModel):
    """One repair: what it made, and what stood in its place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["begun", "done"]
    home: str
    toolchain: str
    previous: str | None
    made_home: bool
    made_folders: tuple[str, ...]


_JOURNAL_FORM = TypeAdapter(list[_Entry])


def apply_home(cuda_dir: Path, plan: HomePlan) -> bool:
    """Make the planned home the current one; returns False where it is that already.

    Raises:
        OSError: The disk, or the compiler that builds the stub, fails; nothing has changed then.
    """
    made = _make_folders(cuda_dir)
    with _lock(cuda_dir):
        journal, inherited = _recover(cuda_dir)
        homes, name = cuda_dir / "homes", f"homes/{plan.name}"
        previous = _read_current(cuda_dir)
        if previous == name and is_whole(cuda_dir / name):
            return False
        entry = _Entry(
            state="begun",
            home=name,
            toolchain=plan.toolchain,
            previous=previous,
            made_home=not (cuda_dir / name).exists(),
            made_folders=_deepest_first(
                *made, *inherited, *((str(homes),) if _is_bare(homes) else ())
            ),
        )
        _write_journal(cuda_dir, [*journal, entry])
        try:
            if not is_whole(cuda_dir / name):
                _build(cuda_dir, plan)
            _point_current(cuda_dir, name)
        except OSError:
            _recover(cuda_dir)
            _remove_empty(cuda_dir, entry.made_folders)
            raise
        _write_journal(cuda_dir, [*journal, entry.model_copy(update={"state": "done"})])
        return True


def undo_home(cuda_dir: Path) -> bool:
    """Take the newest repair back; returns False where none was made."""
    if not cuda_dir.is_dir():
        return False
    with _lock(cuda_dir):
        journal, inherited = _recover(cuda_dir)
        if inherited or not journal:
            bare = (str(cuda_dir / "homes"), str(cuda_dir)) if not journal else ()
            _remove_empty(cuda_dir, _deepest_first(*inherited, *bare))
            return bool(inherited)
        entry = journal[-1]
        # Begun again: once the link has moved, whoever comes next takes the rest of it back.
        undone = entry.model_copy(update={"state": "begun"})
        _write_journal(cuda_dir, [*journal[:-1], undone])
        _point_current(cuda_dir, entry.previous)
        _roll_back(cuda_dir, undone, journal[:-1])
        _remove_empty(cuda_dir, entry.made_folders)
        return True


def _recover(cuda_dir: Path) -> tuple[list[_Entry], tuple[str, ...]]:
    """Bring what a killed repair left to its end, or to its beginning.

    Returns:
        The journal, and the folders that a repair which was taken back had made.
    """
    journal = _read_journal(cuda_dir)
    for leftover in (cuda_dir / "homes").glob(".*"):
        shutil.rmtree(leftover)
    if not journal or journal[-1].state == "done":
        return journal, ()
    entry, earlier = journal[-1], journal[:-1]
    if _read_current(cuda_dir) == entry.home and entry.home != entry.previous:
        journal = [*earlier, entry.model_copy(update={"state": "done"})]
        _write_journal(cuda_dir, journal)
        return journal, ()
    _roll_back(cuda_dir, entry, earlier)
    return earlier, entry.made_folders


def _roll_back(cuda_dir: Path, entry: _Entry, earlier: list[_Entry]) -> None:
    """Remove what a repair made, and its line of the journal last."""
    home = cuda_dir / entry.home
    if entry.made_home and home.exists():
        # Renamed first: a home of that name is then whole or absent.
        hidden = home.with_name(f".{home.name}.old")
        home.rename(hidden)
        shutil.rmtree(hidden)
    kept = {other.toolchain for other in earlier}
    jit = cuda_dir / "jit"
    if entry.toolchain not in kept and (jit / entry.toolchain).is_dir():
        shutil.rmtree(jit / entry.toolchain)
        if not any(jit.iterdir()):
            jit.rmdir()
    _write_journal(cuda_dir, earlier)


def _build(cuda_dir: Path, plan: HomePlan) -> None:
    new = cuda_dir / "homes" / f".{plan.name}.new"
    final = cuda_dir / "homes" / plan.name
    write_home(plan, new)
    if final.exists():
        # Its toolkit has gone and come back otherwise: the old links are of no use.
        final.rename(final.with_name(f".{plan.name}.old"))
    new.rename(final)
    for leftover in final.parent.glob(f".{plan.name}.old"):
        shutil.rmtree(leftover)
    _sync(final.parent)


def _point_current(cuda_dir: Path, name: str | None) -> None:
    current = cuda_dir / CURRENT
    if name is None:
        current.unlink(missing_ok=True)
    else:
        new = cuda_dir / f".{CURRENT}.new"
        new.unlink(missing_ok=True)
        new.symlink_to(name)
        new.replace(current)
    _sync(cuda_dir)


def _read_current(cuda_dir: Path) -> str | None:
    try:
        return str((cuda_dir / CURRENT).readlink())
    except OSError:
        return None


def _read_journal(cuda_dir: Path) -> list[_Entry]:
    path = cuda_dir / _JOURNAL
    return _JOURNAL_FORM.validate_json(path.read_bytes()) if path.exists() else []


def _write_journal(cuda_dir: Path, journal: list[_Entry]) -> None:
    path = cuda_dir / _JOURNAL
    if not journal:
        path.unlink(missing_ok=True)
        return
    new = cuda_dir / f".{_JOURNAL}.new"
    with new.open("w") as stream:
        json.dump([entry.model_dump(mode="json") for entry in journal], stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)
    _sync(cuda_dir)


def _make_folders(folder: Path) -> tuple[str, ...]:
    """Make a folder and those above it; returns the ones that are ours to remove, deepest first."""
    missing = [each for each in folder.parents if not each.exists()]
    # An empty one was left by a repair that was killed before its first line.
    ours = [folder, *missing] if _is_bare(folder) else missing
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(str(each) for each in ours)


def _deepest_first(*folders: str) -> tuple[str, ...]:
    return tuple(sorted(set(folders), key=len, reverse=True))


def _is_bare(folder: Path) -> bool:
    """Whether a folder is absent, or holds nothing but what a killed repair left."""
    return not folder.exists() or all(
        each.name.startswith(".") or (each.name == "homes" and _is_bare(each))
        for each in folder.iterdir()
    )


def _remove_empty(cuda_dir: Path, folders: tuple[str, ...]) -> None:
    for leftover in (cuda_dir / f".{_JOURNAL}.new", cuda_dir / f".{CURRENT}.new"):
        leftover.unlink(missing_ok=True)
    for folder in map(Path, folders):
        if not folder.is_dir() or any(folder.iterdir()):
            return
        folder.rmdir()


@contextmanager
def _lock(cuda_dir: Path) -> Iterator[None]:
    """Hold the folder itself locked: a lock file would be left behind."""
    descriptor = os.open(cuda_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
