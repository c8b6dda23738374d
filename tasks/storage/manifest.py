"""Manifests: written last, revision after revision; the highest valid one is the dataset.

Enters: a Manifest. Leaves: `_manifest/rNNNN.json`, created once. It exists so that "done" is one
object, and so that a repair or a retry adds to a dataset without changing what was there.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from tasks.storage.layout import manifest_key, manifest_prefix, parse_manifest_key
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore

_log = logging.getLogger(__name__)


def read_latest(store: ArtifactStore) -> Manifest | None:
    """Read the highest valid manifest; None where no dataset was finished yet."""
    for revision in sorted(_list_revisions(store), reverse=True):
        data = store.get(manifest_key(revision))
        try:
            manifest = Manifest.model_validate_json(data)
        except ValidationError as error:
            _log.warning(
                "passing over a damaged manifest: %s/%s (%d faults)",
                store.uri,
                manifest_key(revision),
                error.error_count(),
            )
            continue
        if manifest.revision == revision:
            return manifest
        _log.warning("passing over a swapped manifest: %s/%s", store.uri, manifest_key(revision))
    return None


def write_manifest(store: ArtifactStore, manifest: Manifest) -> str:
    """Create the manifest of its revision and tell its key.

    Raises:
        KeyTaken: That revision was written with other content, by another run.
    """
    key = manifest_key(manifest.revision)
    store.create(key, manifest.model_dump_json(indent=2).encode() + b"\n")
    return key


def next_revision(store: ArtifactStore) -> int:
    """Tell the first revision above all that stand there, damaged ones included."""
    return max(_list_revisions(store), default=-1) + 1


def _list_revisions(store: ArtifactStore) -> list[int]:
    keys = [stat.key for stat in store.list(manifest_prefix())]
    return [revision for key in keys if (revision := parse_manifest_key(key)) is not None]
