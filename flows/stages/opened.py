"""What a run holds open: its store, the target's template, and the request frozen at its prefix.

Enters: an ExpansionConfig. Leaves: a Run, closed at the end. It exists so that the story in
expand.py reads without its plumbing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect.filesystems import WritableFileSystem
from prefect.tasks import Task

from flows.config import ExpansionConfig
from flows.configuration.complete import complete_sources, locate_model, secret_of
from flows.pages.narrate import Narrator, narrator
from flows.pages.run_page import show_places
from flows.stages.attend import Farewell, attend
from flows.stages.damage import known_damage
from flows.stages.increments import Past, adopt_dataset, find_past
from flows.stages.kept import KeptTask, keep
from flows.stages.remote import fetch_sources
from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import BaseDatasetError, SourceError, UserError
from tasks.prompts.benchmarks import hash_benchmarks, load_benchmarks
from tasks.prompts.record import ResolvedSource
from tasks.prompts.sources import iter_rows, resolve_source
from tasks.prompts.task import ExtractionContext, extraction_context
from tasks.settings import Settings, read_settings
from tasks.storage.probe import require_create_only
from tasks.storage.record import Request
from tasks.storage.request import freeze_request, read_request
from tasks.storage.store import ArtifactStore, S3Credentials, open_store
from tasks.storage.task import load_credentials, register_result_storage, save_credentials
from tasks.tokens.base import check_tokenizer, hash_base

P = ParamSpec("P")
R = TypeVar("R")


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
    result_storage: WritableFileSystem
    narrator: Narrator
    past: Past
    credentials: S3Credentials | None
    farewell: Farewell

    @property
    def hf_token(self) -> str | None:
        """The Hub token, in the clear: for calls, never for logs."""
        return secret_of(self.settings)

    def persisted(self, task: Task[P, Coroutine[Any, Any, R]], **options: Any) -> KeptTask[P, R]:
        """Bind a task to the storage block of this run's results, where it must be kept."""
        return keep(task, self.result_storage, **options)


@asynccontextmanager
async def open_run(
    config: ExpansionConfig,
    *,
    root: str | None = None,
    must_exist: bool = False,
    with_sources: bool = True,
) -> AsyncIterator[Run]:
    """Open store and template, and freeze the request or take the one that is there.

    Args:
        config: What is asked for.
        root: Of a run over one source, where its earlier runs lie.
        must_exist: Whether a run must have been begun here; an empty prefix stays empty then.
        with_sources: Whether the sources' local files must be there, unchanged.

    Raises:
        UserError: What is asked for cannot be had, or another request lives at the prefix.
    """
    settings = read_settings()
    voice = narrator.get()
    token = secret_of(settings)
    model = locate_model(config.model)
    config = complete_sources(config)
    await save_credentials(config.store, settings)
    credentials = await load_credentials(config.store)
    if with_sources:
        config = await asyncio.to_thread(fetch_sources, config, credentials, settings.home)
    store = await asyncio.to_thread(open_store, config.store, credentials)
    try:
        if must_exist and await store.run(read_request, store) is None:
            raise UserError(
                "there is no run at this prefix",
                where=store.uri,
                remedy="Give the configuration that the run was started with.",
            )
        store = await store.run(
            require_create_only, store, run_unique_keys=config.store.s3.run_unique_keys
        )
        store.damaged |= known_damage.get()
        voice.stage("store", store.uri)
        template = await asyncio.to_thread(ChatTemplate.load, model, token)
        asked = config.asked()

        is_first = False

        def resolve() -> dict[str, Any]:
            nonlocal is_first
            is_first = True
            return resolve_all(config, template, settings, credentials, root=root)

        request = await store.run(freeze_request, store, asked, resolve)
        past = Past.model_validate(request.resolved["past"])
        config = await store.run(build_upon, config, past, credentials, settings.home)
        if not is_first:
            await store.run(check_base, config, request.resolved["base_sha256"])
        sources = tuple(ResolvedSource.model_validate(s) for s in request.resolved["sources"])
        if with_sources:
            benchmarks = request.resolved["benchmarks"]
            await asyncio.to_thread(check_local_files, config, sources, benchmarks)
        extraction_context.set(
            ExtractionContext(
                store,
                template,
                model,
                config.extraction,
                config.sources,
                token,
                settings.spool_dir / "extract",
            )
        )
        async with attend(store, voice) as farewell:
            await show_places(config, store.uri, {})
            yield Run(
                config=config,
                settings=settings,
                store=store,
                template=template,
                model=model,
                request=request,
                sources=sources,
                result_storage=await register_result_storage(config.store, settings),
                narrator=voice,
                past=past,
                credentials=credentials,
                farewell=farewell,
            )
    finally:
        store.close()


def resolve_all(
    config: ExpansionConfig,
    template: ChatTemplate,
    settings: Settings,
    credentials: S3Credentials | None,
    *,
    root: str | None,
) -> dict[str, Any]:
    """Pin what was asked: sources to commits or hashes, the past, the base dataset to a hash."""
    token = secret_of(settings)
    sources = [resolve_source(key, source, token) for key, source in config.sources.items()]
    for source in sources:
        # A mapping that fits no row is found now: once frozen, it could not be corrected.
        limit = config.extraction.max_row_bytes
        next(iter_rows(source, config.sources[source.key], token, max_row_bytes=limit), None)
    load_benchmarks(config.extraction)
    past = find_past(
        config.store,
        credentials,
        root=root,
        earlier=config.extraction.earlier,
        wants_base=config.base is None,
    )
    base = build_upon(config, past, credentials, settings.home).base
    if base is not None:
        check_tokenizer(base, template, thinking=config.model.thinking)
    return {
        "sources": [source.model_dump(mode="json") for source in sources],
        "benchmarks": hash_benchmarks(config.extraction),
        "past": past.model_dump(mode="json"),
        "base_sha256": None if base is None else hash_base(base),
    }


def build_upon(
    config: ExpansionConfig, past: Past, credentials: S3Credentials | None, home: Path
) -> ExpansionConfig:
    """Give the configuration its base: the one that is asked for, else that of the past."""
    if past.base is None or config.base is not None:
        return config
    base = adopt_dataset(config.store, credentials, past.base, home / "bases")
    return config.model_copy(update={"base": base})


def check_base(config: ExpansionConfig, sha256: str | None) -> None:
    """Hold the base dataset against the hash of the frozen request, before it costs a GPU hour.

    Raises:
        BaseDatasetError: It cannot be read, or is another one than when the run began.
    """
    if config.base is not None and hash_base(config.base) != sha256:
        raise BaseDatasetError(
            "the base dataset has changed since the run began.",
            where=config.base.path,
            remedy="Restore it, or start a run with another store.uri.",
        )


def check_local_files(
    config: ExpansionConfig, sources: tuple[ResolvedSource, ...], benchmarks: dict[str, str]
) -> None:
    """Hold local files against the hashes of the frozen request.

    Raises:
        SourceError: A file is another one than when the run began.
    """
    if hash_benchmarks(config.extraction) != benchmarks:
        raise SourceError(
            "a benchmark's file has changed since the run began",
            where="extraction.benchmarks",
            remedy="Restore the file, or start a run with another store.uri.",
        )
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


def spool_of(settings: Settings) -> Path:
    """Make and give the folder of the journals."""
    settings.spool_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    return settings.spool_dir
