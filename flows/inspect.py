"""Finds and opens the store of a run that is there already, to look at it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from flows.config import ExpansionConfig
from flows.load import load_config
from tasks.errors import UserError
from tasks.storage.config import StoreConfig
from tasks.storage.record import Request
from tasks.storage.request import read_request
from tasks.storage.store import ArtifactStore, S3Credentials, open_store


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
    # Credentials blocks need Prefect; only a configuration can name one.
    if "://" in prefix:
        return Place(StoreConfig.model_construct(uri=prefix, protected=()))
    if _is_folder(prefix):
        return Place(StoreConfig(uri=Path(prefix).resolve().as_uri(), protected=()))
    config = load_config(prefix).config
    store = config.store.model_copy(update={"protected": ()})
    if store.s3.credentials_block is None:
        return Place(store, None, config)
    from flows.embedded import prepare_prefect  # noqa: PLC0415
    from tasks.settings import read_settings  # noqa: PLC0415

    prepare_prefect(read_settings())
    from tasks.storage.task import load_credentials  # noqa: PLC0415

    return Place(store, asyncio.run(load_credentials(store)), config)


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
