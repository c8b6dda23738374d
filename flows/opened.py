"""What a run holds open: its store, the target's template, and the request frozen at its prefix.

Enters: an ExpansionConfig. Leaves: a Run, closed at the end. It exists so that the story in
expand.py reads without its plumbing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect.tasks import Task

from flows.config import ExpansionConfig
from flows.narrate import Narrator, narrator
from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import ConfigError, ConfigIssue, SourceError
from tasks.prompts.record import ResolvedSource
from tasks.prompts.sources import complete_source, iter_rows, resolve_source
from tasks.prompts.task import ExtractionContext, extraction_context
from tasks.settings import Settings, read_settings
from tasks.storage.layout import derive_prefix
from tasks.storage.record import Request
from tasks.storage.request import freeze_request, hash_json
from tasks.storage.store import ArtifactStore, check_create_only, open_store
from tasks.storage.task import load_credentials, register_result_storage
from tasks.tokens.base import hash_base

P = ParamSpec("P")
R = TypeVar("R")

_BUILTIN = "builtin:simulator"


@dataclass(frozen=True, slots=True)
class Run:
    """One run, opened."""

    config: ExpansionConfig
    settings: Settings
    store: ArtifactStore
    template: ChatTemplate
    model: ModelConfig
    request: Request
    sources: tuple[ResolvedSource, ...]
    result_storage: str
    narrator: Narrator

    @property
    def hf_token(self) -> str | None:
        """The Hub token, in the clear: for calls, never for logs."""
        return secret_of(self.settings)

    def persisted(self, task: Task[P, R], **options: Any) -> Task[P, R]:
        """Bind a task to the storage block of this run's results."""
        return task.with_options(
            result_storage=self.result_storage,
            result_serializer="json",
            persist_result=True,
            **options,
        )


@asynccontextmanager
async def open_run(config: ExpansionConfig) -> AsyncIterator[Run]:
    """Open store and template, and freeze the request or take the one that is there.

    Raises:
        UserError: What is asked for cannot be had, or another request lives at the prefix.
    """
    settings = read_settings()
    voice = narrator.get()
    token = secret_of(settings)
    model = locate_model(config.model)
    config = complete_sources(config)
    store = await asyncio.to_thread(open_store, config.store, await load_credentials(config.store))
    try:
        await store.run(check_create_only, store)
        voice.stage("store", store.uri)
        template = await asyncio.to_thread(ChatTemplate.load, model, token)
        request = await store.run(
            freeze_request, store, config.asked(), lambda: resolve_all(config, token)
        )
        sources = tuple(ResolvedSource.model_validate(s) for s in request.resolved["sources"])
        await asyncio.to_thread(check_local_files, config, sources)
        extraction_context.set(
            ExtractionContext(store, template, model, config.extraction, config.sources, token)
        )
        yield Run(
            config=config,
            settings=settings,
            store=store,
            template=template,
            model=model,
            request=request,
            sources=sources,
            result_storage=await register_result_storage(config.store),
            narrator=voice,
        )
    finally:
        store.close()


def narrow(config: ExpansionConfig, source: str | None, revision: str | None) -> ExpansionConfig:
    """Give the configuration of a run over one source at one revision, on its own prefix.

    This is what a trigger starts; `store.uri` is then the root of the derived prefixes, so that a
    doubled event resumes.

    Raises:
        ConfigError: The source is not configured, or a revision stands without a source.
    """
    if source is None:
        if revision is not None:
            raise _parameter_fault("revision", "a revision needs its source")
        return config
    if source not in config.sources:
        raise _parameter_fault(source, f"no such source; known: {', '.join(config.sources)}")
    chosen = config.sources[source]
    if revision is not None:
        chosen = chosen.model_copy(update={"revision": revision})
    narrowed = config.model_copy(update={"sources": {source: chosen}})
    resolved = resolve_source(source, complete_source(source, chosen), secret_of(read_settings()))
    asked_sha = hash_json(complete_sources(narrowed).asked())
    uri = derive_prefix(config.store.uri, source, resolved.revision, asked_sha)
    return narrowed.model_copy(update={"store": config.store.model_copy(update={"uri": uri})})


def complete_sources(config: ExpansionConfig) -> ExpansionConfig:
    """Lay each source over the registry's entry that it uses."""
    sources = {key: complete_source(key, source) for key, source in config.sources.items()}
    return config.model_copy(update={"sources": sources})


def locate_model(model: ModelConfig) -> ModelConfig:
    """Point the built-in model's tokenizer at the files that the simulator ships."""
    if model.path != _BUILTIN or model.tokenizer is not None:
        return model
    folder = resources.files("infra.simulator") / "model"
    return model.model_copy(update={"tokenizer": str(folder)})


def resolve_all(config: ExpansionConfig, token: str | None) -> dict[str, Any]:
    """Pin what was asked: each source to a commit or hash, the base dataset to a hash."""
    sources = [resolve_source(key, source, token) for key, source in config.sources.items()]
    for source in sources:
        # A mapping that fits no row is found now: once frozen, it could not be corrected.
        limit = config.extraction.max_row_bytes
        next(iter_rows(source, config.sources[source.key], token, max_row_bytes=limit), None)
    return {
        "sources": [source.model_dump(mode="json") for source in sources],
        "base_sha256": None if config.base is None else hash_base(config.base),
    }


def check_local_files(config: ExpansionConfig, sources: tuple[ResolvedSource, ...]) -> None:
    """Hold local files against the hashes of the frozen request.

    Raises:
        SourceError: A file is another one than when the run began.
    """
    for resolved in sources:
        source = config.sources[resolved.key]
        if source.path is None:
            continue
        now = resolve_source(resolved.key, source, None)
        if now.revision != resolved.revision:
            raise SourceError(
                "the file has changed since the run began",
                where=f"source {resolved.key} ({source.path})",
                remedy="Restore the file, or start a run with another store.uri.",
            )


def secret_of(settings: Settings) -> str | None:
    """Read the Hub token out of the settings."""
    return settings.hf_token.get_secret_value() if settings.hf_token else None


def spool_of(settings: Settings) -> Path:
    """Make and give the folder of the journals."""
    settings.spool_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return settings.spool_dir


def _parameter_fault(path: str, message: str) -> ConfigError:
    return ConfigError(
        "the flow's parameters cannot be used:", issues=(ConfigIssue("parameters", path, message),)
    )
