"""Whether a store keeps the promise to create only, tried before a run begins.

Enters: a store. Leaves: nothing, an error, or (where the user said so) a store that needs no
promise. It exists because servers are about that take a write to a key that exists, some of them
only when two writes come at once, and none of them says so.
"""

from __future__ import annotations

import logging
import secrets
from concurrent.futures import ThreadPoolExecutor

from tasks.errors import KeyTaken, OverwritePossible
from tasks.storage.layout import probe_key, race_probe_key
from tasks.storage.store import ArtifactStore
from tasks.storage.unique import UniqueKeyStore

_log = logging.getLogger(__name__)

_PROBE = b"The next write to this key must be refused.\n"
_SECOND_PROBE = b"This write should have been refused.\n"
_N_RACERS = 8


def check_create_only(store: ArtifactStore) -> None:
    """Try to overwrite probe objects, one write after the other and many at once.

    Raises:
        OverwritePossible: A second write was taken, or the first one's bytes are gone.
    """
    if isinstance(store, UniqueKeyStore):
        return  # it never writes to a key that another may write to
    if not (_refuses_second_write(store) and _has_one_winner(store)):
        raise OverwritePossible(
            "the store takes a write to a key that exists, although it was told to create only.",
            where=f"{store.uri}/{probe_key()}",
            remedy="Use a store that honours `If-None-Match: *` on PutObject (AWS S3, SeaweedFS, "
            "MinIO, R2), or a file:// store; or set store.s3.run_unique_keys: true, by which "
            "every run writes to keys of its own and the manifest chooses.",
        )


def require_create_only(store: ArtifactStore, *, run_unique_keys: bool) -> ArtifactStore:
    """Give the store if it creates only, else one of run-unique keys where that is wished.

    Raises:
        OverwritePossible: The store overwrites, and the user did not opt in.
    """
    try:
        check_create_only(store)
    except OverwritePossible:
        if not run_unique_keys:
            raise
        _log.warning(
            "%s: the store overwrites; as store.s3.run_unique_keys says, every object gets a key "
            "of this run's own (KEY~RUN), and the manifest names those that count",
            store.uri,
        )
        return UniqueKeyStore(store)
    return store


def _refuses_second_write(store: ArtifactStore) -> bool:
    try:
        store.create(probe_key(), _PROBE)
        store.create(probe_key(), _SECOND_PROBE)
    except KeyTaken:
        return store.get(probe_key()) == _PROBE
    return False


def _has_one_winner(store: ArtifactStore) -> bool:
    """Let writers race for one key. On a later run it is taken, and none may win."""
    key = race_probe_key()
    is_taken = store.head(key) is not None

    def write(data: bytes) -> bytes | None:
        try:
            store.create(key, data)
        except KeyTaken:
            return None
        return data

    with ThreadPoolExecutor(_N_RACERS) as pool:
        tickets = [secrets.token_bytes(32) for _ in range(_N_RACERS)]
        won = [data for data in pool.map(write, tickets) if data is not None]
    there = store.get(key)
    # None won where another run's probe was quicker; its bytes are then none of ours.
    return len(won) <= (0 if is_taken else 1) and (there in won if won else there not in tickets)
