"""A store whose server overwrites, made safe by keys that no two writers share.

Enters: a store that takes a write to a key that exists. Leaves: a store with the same face, which
keeps `data/x` as `data/x~RUN-N`, a key of this process alone. Where several stand, the first one
written is the object, and the manifest names the very one that it means (`stored_as`). Used only
where the user opts in: it costs a listing an object, and two seconds for each object of `_run/`
and `_manifest/`, for which no two runs may believe different things.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tasks.errors import KeyTaken
from tasks.storage.layout import check_key, manifest_prefix, presence_prefix, request_key
from tasks.storage.record import ObjectStat
from tasks.storage.store import ArtifactStore

_BLOCK = 1 << 20
_MARK = "~"
# Servers tell times in whole seconds: who waits longer than one sees every earlier writer.
_SETTLE_SECONDS = 2.2
_SETTLED = ("_run/", manifest_prefix())


class UniqueKeyStore(ArtifactStore):
    """Objects under keys of each run's own; the first one written counts."""

    def __init__(self, inner: ArtifactStore) -> None:
        """Wrap a store; nothing is read yet."""
        super().__init__(inner.uri, 16)
        self._inner = inner
        self._run = secrets.token_hex(6)
        self._numbers = itertools.count()
        self._chosen: dict[str, str] = {}

    @property
    def chosen(self) -> Mapping[str, str]:
        """Where each object lies that this process wrote or read."""
        return dict(self._chosen)

    def pin(self, stored_as: Mapping[str, str]) -> None:
        """Take a manifest's word for where its objects lie."""
        self._chosen.update(stored_as)

    def create(self, key: str, data: bytes) -> ObjectStat:
        """Create an object, or find the same bytes there already."""
        return self._create(key, lambda own: self._inner.create(own, data), io.BytesIO(data))

    def create_file(self, key: str, path: Path) -> ObjectStat:
        """Create an object from a local file, streamed."""
        with path.open("rb") as source:
            return self._create(key, lambda own: self._inner.create_file(own, path), source)

    def get(self, key: str) -> bytes:
        """Read a whole object."""
        return self._inner.get(self._find(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        return self._inner.get_range(self._find(key), start, length)

    def open(self, key: str) -> BinaryIO:
        """Open an object for streaming."""
        return self._inner.open(self._find(key))

    def head(self, key: str) -> ObjectStat | None:
        """Tell an object's size."""
        try:
            there = self._inner.head(self._find(key))
        except FileNotFoundError:
            return None
        return there and ObjectStat(key, there.n_bytes, there.sha256)

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """List the objects whose key begins with `prefix`, each once."""
        found: dict[str, list[ObjectStat]] = {}
        for stat in self._inner.list(prefix):
            found.setdefault(stat.key.partition(_MARK)[0], []).append(stat)
        for key, stats in sorted(found.items()):
            there = next((s for s in stats if s.key == self._chosen.get(key)), min(stats, key=_age))
            yield ObjectStat(key, there.n_bytes)

    def list_folders(self) -> Iterator[str]:
        """Name the folders directly below the prefix."""
        return self._inner.list_folders()

    def close(self) -> None:
        """Wait for transfers under way and let the threads go."""
        super().close()
        self._inner.close()

    def _find(self, key: str) -> str:
        """Say where an object lies."""
        chosen = self._chosen.get(key)
        if chosen is None:
            written = [s for s in self._inner.list(check_key(key)) if _is_of(s.key, key)]
            if not written:
                raise FileNotFoundError(key)
            chosen = self._chosen.setdefault(key, min(written, key=_age).key)
        return chosen

    def _create(self, key: str, write: Callable[[str], ObjectStat], source: BinaryIO) -> ObjectStat:
        sha256, n_bytes = _digest(source)
        try:
            there = self._find(key)
        except FileNotFoundError:
            own = f"{check_key(key)}{_MARK}{self._run}-{next(self._numbers)}"
            write(own)
            if key.startswith(_SETTLED) and not key.startswith(presence_prefix()):
                time.sleep(_SETTLE_SECONDS)
            there = self._find(key)
            if there == own:
                return ObjectStat(key, n_bytes, sha256)
        with self._inner.open(there) as stream:
            if _digest(stream) == (sha256, n_bytes):
                return ObjectStat(key, n_bytes, sha256)
        raise KeyTaken("other bytes stand at this key.", where=f"{self.uri}/{there}")


def holds_unique_keys(store: ArtifactStore) -> bool:
    """Whether a run wrote here with keys of its own."""
    return next(store.list(f"{request_key()}{_MARK}"), None) is not None


def _is_of(stored: str, key: str) -> bool:
    return stored == key or stored.startswith(f"{key}{_MARK}")


def _age(stat: ObjectStat) -> tuple[float, str]:
    return stat.modified_at or 0.0, stat.key


def _digest(source: BinaryIO) -> tuple[str, int]:
    digest, n_bytes = hashlib.sha256(), 0
    while block := source.read(_BLOCK):
        digest.update(block)
        n_bytes += len(block)
    return digest.hexdigest(), n_bytes
