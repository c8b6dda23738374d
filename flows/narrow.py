"""A run over one source at one revision, as a trigger or `--source` starts it.

Enters: a configuration, a source's name, perhaps a revision. Leaves: the configuration of that run,
on a prefix of its own below `store.uri`. The revision is pinned before the prefix is derived, so
that a doubled event, a rerun by hand and a run that asked for the newest all find the same prefix.
"""

from __future__ import annotations

import asyncio

from rapidfuzz import process

from flows.config import ExpansionConfig
from flows.narrate import narrator
from flows.opened import complete_sources, secret_of
from flows.remote import fetch_sources
from tasks.errors import ConfigError, ConfigIssue, SourceError
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
    if source is None:
        if revision is not None:
            raise _parameter_fault("revision", "a revision needs its source")
        return config
    if source not in config.sources:
        raise _parameter_fault("source", _describe_unknown(source, list(config.sources)))
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


def pin(config: ExpansionConfig, source: str, revision: str | None) -> ExpansionConfig:
    """Leave one source in a configuration, at a revision; empty: at the one it names itself."""
    chosen = config.sources[source]
    if revision:
        chosen = chosen.model_copy(update={"revision": revision})
    return config.model_copy(update={"sources": {source: chosen}})


def hash_asked(config: ExpansionConfig) -> str:
    """Hash what a run with this configuration asks for, as its request holds it."""
    return hash_json(complete_sources(config).asked())


def _describe_unknown(source: str, known: list[str]) -> str:
    near = process.extractOne(source, known, score_cutoff=60)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"no source {source!r:.80}: {hint}the configuration has {', '.join(known)}"


def _parameter_fault(path: str, message: str) -> ConfigError:
    return ConfigError(
        "the flow's parameters cannot be used:", issues=(ConfigIssue("parameters", path, message),)
    )
