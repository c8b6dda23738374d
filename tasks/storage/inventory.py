"""What a finished run holds beside data, samples and dataset, for its manifest.

Enters: a store, and the key of the report. Leaves: a receipt of each object. It exists so that
verification can tell damage in the request, the plan, the prompts and the pages, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from tasks.storage.frames import Meter
from tasks.storage.layout import canary_key, plan_key, request_key
from tasks.storage.record import ObjectReceipt, ObjectStat
from tasks.storage.store import ArtifactStore

_FOLDERS = ("extracted/", "prompts/")
_AT_ONCE = 8
_BLOCK = 1 << 20


def take_inventory(store: ArtifactStore, pages: Iterable[str | None]) -> tuple[ObjectReceipt, ...]:
    """Hash the request, the plan, everything extracted and planned, and the pages.

    Where the store keeps the sha256 of the writer, that is taken: an object damaged before the
    manifest is then found by verification. Those known to be damaged are left out.

    Args:
        store: The run's store.
        pages: Keys of the report's pages; those that are not there are left out.
    """
    keys = [request_key(), plan_key(), canary_key(), *(page for page in pages if page)]
    keys += [stat.key for folder in _FOLDERS for stat in store.list(folder)]
    wanted = sorted(set(keys) - store.damaged)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        stats = [stat for stat in pool.map(store.head, wanted) if stat is not None]
        return tuple(pool.map(lambda stat: _describe(store, stat), stats))


def find_changed(store: ArtifactStore, objects: Iterable[ObjectReceipt]) -> str | None:
    """Name the first object that is missing or of another size; None where there is none."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        listed = list(objects)
        for entry, stat in zip(listed, pool.map(lambda e: store.head(e.key), listed), strict=True):
            if stat is None or stat.n_bytes != entry.n_bytes or entry.key in store.damaged:
                return entry.key
    return None


def _describe(store: ArtifactStore, stat: ObjectStat) -> ObjectReceipt:
    sha256 = stat.sha256
    if sha256 is None:
        with store.open(stat.key) as stream:
            meter = Meter(stream)
            while meter.read(_BLOCK):
                pass
            sha256 = meter.sha256
    return ObjectReceipt(key=stat.key, sha256=sha256, n_bytes=stat.n_bytes)
