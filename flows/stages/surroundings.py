"""Asks what lies beyond the box: the store, its clock, and every source, each on its own.

Enters: an ExpansionConfig. Leaves: facts for the doctor's checks; an error is a fact. Nothing is
downloaded, and nothing is written but the store's own probe of create-only writes.
"""

from __future__ import annotations

import time
from contextlib import closing
from email.utils import parsedate_to_datetime

import httpx

from flows.config import ExpansionConfig
from flows.dataset.inspect import read_credentials
from flows.stages.remote import find_object, is_remote
from tasks.environment.box_facts import DiskFacts, SourceFacts, StoreFacts
from tasks.environment.host_facts import read_disk
from tasks.environment.model_facts import hub_cache
from tasks.errors import DraftmillError
from tasks.prompts.sources import complete_source, resolve_source
from tasks.settings import Settings
from tasks.storage.config import StoreConfig
from tasks.storage.probe import require_create_only
from tasks.storage.store import open_store

_CLOCK_SECONDS = 5.0


def probe_store(config: StoreConfig, settings: Settings) -> StoreFacts:
    """Open the store, try to overwrite a probe, and compare clocks."""
    try:
        with closing(open_store(config, read_credentials(config, settings))) as store:
            require_create_only(store, run_unique_keys=config.s3.run_unique_keys)
    except DraftmillError as error:
        return StoreFacts(uri=config.uri, error=error.what, remedy=error.remedy)
    return StoreFacts(uri=config.uri, create_only=True, skew_seconds=read_skew(config))


def read_skew(config: StoreConfig) -> float | None:
    """Give our clock less the store's, in seconds; None: it tells no time.

    Any answer of an HTTP server bears its time, a refusal as well.
    """
    if not config.uri.startswith("s3://"):
        return None
    region = config.s3.region
    default = f"https://s3.{region}.amazonaws.com" if region else "https://s3.amazonaws.com"
    try:
        began = time.time()
        reply = httpx.head(config.s3.endpoint_url or default, timeout=_CLOCK_SECONDS)
        told = parsedate_to_datetime(reply.headers["date"]).timestamp()
    except (httpx.HTTPError, KeyError, ValueError):
        return None
    # The header has whole seconds, cut off: half of one is the best guess.
    return (began + time.time()) / 2 - (told + 0.5)


def probe_source(key: str, config: ExpansionConfig, settings: Settings) -> SourceFacts:
    """Resolve one source: reachable, at its revision, and with the token accepted."""
    try:
        source = complete_source(key, config.sources[key])
        if source.path is not None and is_remote(source.path):
            credentials = read_credentials(config.store, settings)
            with find_object(key, source.path, config.store, credentials) as (_, stat):
                return SourceFacts(key=key, dataset=stat.key, revision=f"{stat.n_bytes} bytes")
        token = settings.hf_token.get_secret_value() if settings.hf_token else None
        found = resolve_source(key, source, token)
    except DraftmillError as error:
        return SourceFacts(key=key, error=error.what, remedy=error.remedy)
    except OSError as error:
        return SourceFacts(key=key, error=str(error), is_user_fault=False)
    return SourceFacts(key=key, dataset=found.dataset, revision=found.revision)


def read_cache(config: ExpansionConfig) -> tuple[DiskFacts, float]:
    """Read the disk that datasets are downloaded to, and how much they need, in GiB."""
    sources = [complete_source(key, source) for key, source in config.sources.items()]
    needed = 0.0
    if any(source.path is None for source in sources):
        needed = config.environment.cache_gib
    return read_disk(hub_cache()), needed
