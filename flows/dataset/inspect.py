"""Finds and opens the store of a run that is there already, to look at it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from tasks.errors import UserError
from tasks.settings import Settings, read_settings
from tasks.storage.config import StoreConfig
from tasks.storage.layout import parse_derived
from tasks.storage.location import Location, parse_uri
from tasks.storage.record import Request
from tasks.storage.request import read_request
from tasks.storage.store import ArtifactStore, S3Credentials, open_store

# Several may ask side by side, and Prefect's settings must stand before its import.
_PREFECT_LOCK = threading.Lock()


def open_prefix(prefix: str) -> ArtifactStore:
    """Open the store of a run that is there already."""
    place = locate(prefix)
    return open_store(place.store, place.credentials)


@dataclass(frozen=True, slots=True)
class Place:
    """What a prefix stands for; `config` where it is a configuration, which names the store."""

    store: StoreConfig
    credentials: S3Credentials | None = None
    config: ExpansionConfig | None = None


def locate(prefix: str) -> Place:
    """Tell how the store at a uri, a folder, or in a configuration is opened."""
    # To look at a run nothing need be protected; and what is wrong with a uri, the store says best.
    if "://" in prefix:
        return Place(StoreConfig.model_construct(uri=prefix, protected=()))
    if _is_folder(prefix):
        return Place(StoreConfig(uri=Path(prefix).resolve().as_uri(), protected=()))
    config = load_config(prefix).config
    store = config.store.model_copy(update={"protected": ()})
    return Place(store, read_credentials(store, read_settings()), config)


def read_credentials(config: StoreConfig, settings: Settings) -> S3Credentials | None:
    """Read the keys from the block that the configuration names; None: it names none.

    Raises:
        CredentialsRefused: There is no such block, or it is of no use.
    """
    if config.s3.credentials_block is None or not config.uri.startswith("s3://"):
        return None
    # Only a block needs Prefect, whose import takes longer than most commands.
    with _PREFECT_LOCK:
        # In a flow Prefect is there, set up by whoever runs it.
        if "prefect" not in sys.modules:
            from flows.process.embedded import prepare_prefect  # noqa: PLC0415

            prepare_prefect(settings)
        from tasks.storage.task import load_credentials  # noqa: PLC0415

    return asyncio.run(load_credentials(config))


def iter_folders(place: Place) -> Iterator[tuple[str, StoreConfig | None]]:
    """Go through the folders directly below a root, as they are found.

    Yields:
        The folder's name; and where it is the prefix of a run over one source, that run's store.
    """
    root = parse_uri(place.store.uri)
    with closing(open_store(place.store, place.credentials)) as store:
        for name in store.list_folders():
            if parse_derived(name) is None:
                yield name, None
                continue
            uri = Location(root.scheme, root.bucket, (*root.segments, name)).uri
            yield name, place.store.model_copy(update={"uri": uri})


def _is_folder(path: str) -> bool:
    try:
        return path != "" and Path(path).is_dir()
    except (OSError, ValueError):  # a name too long, a NUL: no folder
        return False


def require_request(store: ArtifactStore) -> Request:
    """Read the request frozen at a prefix.

    Raises:
        UserError: There is none.
    """
    request = read_request(store)
    if request is None:
        raise UserError(
            "there is no run at this prefix",
            where=store.uri,
            remedy="Give the prefix that `draftmill run` printed, or the configuration.",
        )
    return request
