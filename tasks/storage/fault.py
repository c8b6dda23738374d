"""What is wrong with one object, found by its size, its hash and its rows.

Enters: a key and what its receipt says. Leaves: a fault in words, or nothing. It exists so that
every kind of object is held against its receipt by the same few looks, each of them streamed.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow.lib
import pyarrow.parquet

from tasks.storage.frames import Meter
from tasks.storage.record import ShardReceipt
from tasks.storage.store import ArtifactStore

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: where, what, and what to do; `is_object` where the object itself is at fault."""

    place: str
    what: str
    remedy: str
    is_object: bool = True

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


def find_size_fault(store: ArtifactStore, key: str, n_bytes: int) -> str:
    """Say whether an object is missing or of another size; empty where it is neither."""
    there = store.head(key)
    if there is None:
        return "it is missing"
    return "" if there.n_bytes == n_bytes else f"it has {there.n_bytes} bytes instead of {n_bytes}"


def find_hash_fault(
    store: ArtifactStore, key: str, sha256: str, *, n_rows: int | None = None
) -> str:
    """Read an object once; with `n_rows` also count its rows as a Parquet file."""
    with tempfile.TemporaryFile() as copy:
        try:
            with store.open(key) as stream:
                meter = Meter(stream)
                while block := meter.read(_BLOCK):
                    if n_rows is not None:
                        copy.write(block)
        except FileNotFoundError:
            return "it is missing"
        if meter.sha256 != sha256:
            return "its sha256 is not the manifest's"
        if n_rows is None:
            return ""
        try:
            there = pyarrow.parquet.ParquetFile(copy).metadata.num_rows
        except (pyarrow.lib.ArrowException, OSError):
            return "it is no Parquet file"
    return "" if there == n_rows else f"it has {there} rows instead of {n_rows}"


def find_damaged_shard(store: ArtifactStore, shards: Iterable[ShardReceipt]) -> str | None:
    """Name the first shard that is missing or has other bytes than its receipt says."""
    for shard in shards:
        fault = find_size_fault(store, shard.key, shard.n_bytes)
        if fault or find_hash_fault(store, shard.key, shard.sha256):
            return shard.key
    return None


def is_chosen(key: str, share: float) -> bool:
    """Whether an object is among the share that is read in full: the same ones at each call."""
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16) < share * 16**12
