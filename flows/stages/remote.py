"""Sources that lie on the store's S3 endpoint: fetched once to the local disk.

Enters: a configuration. Leaves: the same with local paths. It exists so that extraction reads one
kind of file, twice if need be, whatever the network does in between. The copy is kept by the
object's hash where the store keeps one; the run's own hash of the copy notices a change, as it does
of a local file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flows.config import ExpansionConfig
from tasks.errors import SourceError
from tasks.prompts.config import SourceConfig
from tasks.storage.config import StoreConfig
from tasks.storage.record import ObjectStat
from tasks.storage.store import ArtifactStore, S3Credentials, open_store

_SCHEME = "s3://"
_COPY_BYTES = 1 << 20


def fetch_sources(
    config: ExpansionConfig, credentials: S3Credentials | None, home: Path
) -> ExpansionConfig:
    """Give each source with an s3:// path its local copy.

    Args:
        config: Whose `store.s3` says how the endpoint is reached.
        credentials: Those of the store.
        home: Copies lie in `sources/` below it.

    Raises:
        SourceError: There is no such object.
        StoreError: The endpoint does not let us in, or does not answer.
    """
    sources = {
        key: _fetch(key, source, config, credentials, home / "sources")
        for key, source in config.sources.items()
    }
    return config.model_copy(update={"sources": sources})


def is_remote(path: str | None) -> bool:
    """Whether a source's path is an object of the store's endpoint."""
    return path is not None and path.startswith(_SCHEME)


@contextmanager
def find_object(
    key: str, uri: str, config: StoreConfig, credentials: S3Credentials | None
) -> Iterator[tuple[ArtifactStore, ObjectStat]]:
    """Find a source's object: the store that is open where it lies, and what it tells of it.

    Raises:
        SourceError: There is no such object.
        StoreError: The endpoint does not let us in, or does not answer.
    """
    prefix, _, name = uri.rpartition("/")
    # Only read from, so that no prefix is protected from it.
    where = config.model_copy(update={"uri": prefix, "protected": ()})
    with closing(open_store(where, credentials)) as store:
        stat = store.head(name)
        if stat is None:
            raise SourceError(
                "there is no such object.",
                where=f"source {key} ({uri})",
                remedy="Correct the source's path: s3://BUCKET/KEY, on the endpoint of store.s3.",
            )
        yield store, stat


def _fetch(
    key: str,
    source: SourceConfig,
    config: ExpansionConfig,
    credentials: S3Credentials | None,
    folder: Path,
) -> SourceConfig:
    uri = source.path
    if uri is None or not is_remote(uri):
        return source
    with find_object(key, uri, config.store, credentials) as (store, stat):
        name = stat.key
        digest = hashlib.sha256(f"{uri} {stat.n_bytes} {stat.sha256}".encode()).hexdigest()[:16]
        path = folder / digest / name
        if stat.sha256 is None or not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Two runs may fetch the same object at once.
            partial = path.with_name(f"{name}.{os.getpid()}.partial")
            with store.open(name) as stream, partial.open("wb") as copy:
                while data := stream.read(_COPY_BYTES):
                    copy.write(data)
            partial.replace(path)
    return source.model_copy(update={"path": str(path)})
