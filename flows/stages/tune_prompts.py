"""The prompts that candidates are measured with: the run's own, some hundreds of them.

Enters: an ExpansionConfig. Leaves: rendered prompts as ids. A run that has its plan gives those of
its canary, which holds some of every source; else the first good rows of each source are rendered.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from itertools import islice

from flows.config import ExpansionConfig
from flows.configuration.complete import complete_sources, locate_model, secret_of
from flows.stages.remote import fetch_sources
from tasks.chat.template import ChatTemplate
from tasks.errors import StoreError, UserError
from tasks.prompts.chunk import read_chunk, read_plan
from tasks.prompts.filters import render_first_turns
from tasks.prompts.normalize import normalize_row
from tasks.prompts.record import NormalizedRow, SourceRef
from tasks.prompts.sources import iter_rows, resolve_source
from tasks.settings import Settings
from tasks.storage.store import open_store
from tasks.storage.task import load_credentials

MOST_PROMPTS = 512


def sample_prompts(config: ExpansionConfig, settings: Settings) -> tuple[list[list[int]], str]:
    """Give prompts as ids, shape [n_prompts, n_tokens], and in words where they come from.

    Raises:
        UserError: A source cannot be read, or none of its first rows is a prompt.
    """
    planned = _read_canary(config)
    if planned:
        return planned, "the run's canary"
    prompts = _read_sources(config, settings)
    if not prompts:
        raise UserError(
            "none of the sources' first rows is a prompt",
            where="sources",
            remedy="See `draftmill plan` for why the rows are rejected.",
        )
    return prompts, "the first rows of each source"


def _read_canary(config: ExpansionConfig) -> list[list[int]]:
    try:
        credentials = asyncio.run(load_credentials(config.store))
        with closing(open_store(config.store, credentials)) as store:
            plan = read_plan(store)
            if plan is None:
                return []
            prompts = read_chunk(store, plan.chunks[0])
    except StoreError:
        return []
    return [list(prompt.prompt_token_ids) for prompt in prompts[:MOST_PROMPTS]]


def _read_sources(config: ExpansionConfig, settings: Settings) -> list[list[int]]:
    token = secret_of(settings)
    config, model = complete_sources(config), locate_model(config.model)
    config = fetch_sources(config, asyncio.run(load_credentials(config.store)), settings.home)
    template = ChatTemplate.load(model, token)
    n_each = max(1, MOST_PROMPTS // len(config.sources))
    rows = []
    for key, source in config.sources.items():
        resolved = resolve_source(key, source, token)
        limit = config.extraction.max_row_bytes
        found = islice(iter_rows(resolved, source, token, max_row_bytes=limit), n_each)
        ref = SourceRef(key, resolved.dataset, None, "", resolved.revision, 0)
        read = (normalize_row(row, ref, source) for row in found)
        rows += [(row.messages, row.tools) for row in read if isinstance(row, NormalizedRow)]
    rendered = render_first_turns(
        rows,
        template,
        thinking=model.thinking,
        max_prompt_tokens=model.context_length - config.extraction.min_answer_tokens,
    )
    return [ids for ids in rendered if isinstance(ids, list)]
