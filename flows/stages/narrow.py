"""A run over one source at one revision, as a trigger or `--source` starts it.

Enters: a configuration, a source's name, perhaps a revision. Leaves: the configuration of that run,
on a prefix of its own below `store.uri`. The revision is pinned before the prefix is derived, so
that a doubled event, a rerun by hand and a run that asked for the newest all find the same prefix.
"""

from __future__ import annotations

import asyncio

from flows.config import ExpansionConfig
from flows.configuration.complete import check_source, complete_sources, pin, secret_of
from flows.pages.narrate import narrator
from flows.stages.remote import fetch_sources
from tasks.errors import SourceError
from tasks.prompts.sources import resolve_source
from tasks.settings import read_settings
from tasks.storage.layout import derive_prefix
from tasks.storage.request import hash_json
from tasks.storage.store import S3Credentials
from tasks.storage.task import load_credentials, save_credentials


async def load_narrowed(
    config: ExpansionConfig, source: str | None, revision: str | None
) -> ExpansionConfig:
    """Narrow a configuration (`narrow`), with the store's credentials for a source beside it."""
    if source is None and revision is None:
        return config
    await save_credentials(config.store, read_settings())
    credentials = await load_credentials(config.store)
    narrowed = await asyncio.to_thread(narrow, config, source, revision, credentials)
    if source is not None:
        pinned = narrowed.sources[source].revision
        narrator.get().stage("source", f"{source} at {pinned}, on {narrowed.store.uri}")
    return narrowed


def narrow(
    config: ExpansionConfig,
    source: str | None,
    revision: str | None,
    credentials: S3Credentials | None = None,
) -> ExpansionConfig:
    """Give the configuration of a run over one source at one revision, on its own prefix.

    `store.uri` is the root of the derived prefixes. Credentials are the store's, for a source that
    lies on its endpoint.

    Raises:
        ConfigError: The source is not configured, or a revision stands without a source.
        SourceError: The revision is not to be had: a local file has changed since.
    """
    check_source(config, source, revision)
    if source is None:
        return config
    settings = read_settings()
    asked = pin(config, source, revision)
    local = fetch_sources(complete_sources(asked), credentials, settings.home).sources[source]
    newest = resolve_source(source, local, secret_of(settings)).revision
    if local.path is not None and revision and revision != newest:
        raise SourceError(
            f"the file is not at revision {revision} any more, but at {newest}.",
            where=f"source {source} ({config.sources[source].path})",
            remedy="Put the file back as it was, or leave the revision out to run over it as it "
            "is now.",
        )
    pinned = pin(config, source, newest)
    uri = derive_prefix(config.store.uri, source, newest, hash_asked(pinned))
    return pinned.model_copy(update={"store": config.store.model_copy(update={"uri": uri})})


def hash_asked(config: ExpansionConfig) -> str:
    """Hash what a run with this configuration asks for, as its request holds it."""
    return hash_json(complete_sources(config).asked())
