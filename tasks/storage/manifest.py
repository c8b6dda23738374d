"""Manifests: written last, revision after revision; the highest valid one is the dataset.

Enters: a Manifest. Leaves: `_manifest/rNNNN.json`, created once. It exists so that "done" is one
object, and so that a repair or a retry adds to a dataset without changing what was there.
"""

from __future__ import annotations

import logging

import orjson
from pydantic import ValidationError

from tasks.storage.layout import manifest_key, manifest_prefix, parse_manifest_key
from tasks.storage.record import Manifest
from tasks.storage.request import hash_json
from tasks.storage.store import ArtifactStore
from tasks.storage.unique import UniqueKeyStore

_log = logging.getLogger(__name__)

_END = b"\n}\n"


def read_latest(store: ArtifactStore) -> Manifest | None:
    """Read the highest valid manifest; None where no dataset was finished yet."""
    for revision in sorted(list_revisions(store), reverse=True):
        manifest = read_revision(store, revision)
        if manifest is not None:
            return manifest
        _log.warning("passing over a damaged manifest: %s/%s", store.uri, manifest_key(revision))
    return None


def read_revision(store: ArtifactStore, revision: int) -> Manifest | None:
    """Read the manifest of a revision; None where it is not there, or damaged."""
    try:
        manifest = _parse(store.get(manifest_key(revision)))
    except FileNotFoundError:
        return None
    if manifest is None or manifest.revision != revision:
        return None
    if isinstance(store, UniqueKeyStore):
        store.pin(manifest.stored_as)
    return manifest


def write_manifest(store: ArtifactStore, manifest: Manifest) -> str:
    """Create the manifest of its revision and tell its key.

    Raises:
        KeyTaken: That revision was written with other content, by another run.
    """
    key = manifest_key(manifest.revision)
    if isinstance(store, UniqueKeyStore):
        manifest = manifest.model_copy(update={"stored_as": dict(store.chosen)})
    value = manifest.model_dump(mode="json", exclude={"self_sha256"})
    value["self_sha256"] = hash_json(value)
    store.create(key, orjson.dumps(value, option=orjson.OPT_INDENT_2) + _END[-1:])
    return key


def next_revision(store: ArtifactStore) -> int:
    """Tell the first revision above all that stand there, damaged ones included."""
    return max(list_revisions(store), default=-1) + 1


def list_revisions(store: ArtifactStore) -> list[int]:
    """List the revisions that stand there, damaged ones included."""
    keys = [stat.key for stat in store.list(manifest_prefix())]
    return [revision for key in keys if (revision := parse_manifest_key(key)) is not None]


def _parse(data: bytes) -> Manifest | None:
    """Read a manifest that is what it was when it was written, to the byte."""
    try:
        value = orjson.loads(data)
        manifest = Manifest.model_validate(value)
    except (orjson.JSONDecodeError, ValidationError):
        return None
    # Over the JSON as it stands: a field that a later version adds is in no older hash.
    claimed = value.pop("self_sha256", "")
    is_sound = not claimed or (hash_json(value) == claimed and data.endswith(_END))
    return manifest if is_sound else None
