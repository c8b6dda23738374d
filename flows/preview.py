"""The dry run: extraction and planning in a scratch folder, and the keys that a run would write.

Enters: an ExpansionConfig. Leaves: counts and keys. The run's own store is only listed.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import humanize
from rich.console import Group, RenderableType

from flows.config import ExpansionConfig
from flows.embedded import prepare_prefect
from flows.speak import ERR, table
from flows.summary import show_place
from tasks.chat.template import ChatTemplate
from tasks.prompts.chunk import make_plan, read_chunk
from tasks.prompts.extract import extract_prompts
from tasks.prompts.record import ExtractReceipt, Plan
from tasks.prompts.sources import resolve_source
from tasks.settings import read_settings
from tasks.storage import layout
from tasks.storage.config import StoreConfig
from tasks.storage.request import hash_json
from tasks.storage.store import ArtifactStore, open_store


def preview(config: ExpansionConfig) -> dict[str, Any]:
    """Extract and plan without writing to the store.

    Raises:
        UserError: A source, the model or the store cannot be had.
    """
    settings = read_settings()
    # The rooms' tasks need Prefect's settings; nothing here calls its API.
    prepare_prefect(settings)
    from flows.opened import complete_sources, locate_model, secret_of  # noqa: PLC0415
    from tasks.storage.task import load_credentials  # noqa: PLC0415

    config, model, token = complete_sources(config), locate_model(config.model), secret_of(settings)
    with closing(open_store(config.store, asyncio.run(load_credentials(config.store)))) as store:
        there = _describe_store(store)
    template = ChatTemplate.load(model, token)
    asked_sha = hash_json(config.asked())
    with (
        tempfile.TemporaryDirectory(prefix="draftmill-plan-") as folder,
        closing(open_store(StoreConfig(uri=Path(folder).as_uri()))) as scratch,
    ):
        receipts: list[ExtractReceipt] = []
        for key, source in config.sources.items():
            ERR.print(f"reading {key}", style="dim", markup=False)
            receipts.append(
                extract_prompts(
                    scratch,
                    resolve_source(key, source, token),
                    source,
                    template=template,
                    model=model,
                    extraction=config.extraction,
                    hf_token=token,
                )
            )
        plan = make_plan(
            scratch,
            request_sha=asked_sha,
            receipts=receipts,
            model=model,
            template=template,
            extraction=config.extraction,
            sampling=config.sampling.model_dump(exclude={"max_tokens", "n_samples"}),
            n_samples=config.sampling.n_samples,
            max_tokens=config.sampling.max_tokens,
        )
        n_prompt_tokens = sum(
            len(prompt.prompt_token_ids)
            for chunk in plan.chunks
            for prompt in read_chunk(scratch, chunk)
        )
    return {
        "uri": config.store.uri,
        "store": there,
        "plan_sha": plan.sha,
        "sources": [receipt.model_dump(mode="json") for receipt in plan.extracted],
        "n_duplicates": plan.n_duplicates,
        "n_prompts": plan.n_prompts,
        "n_conversations": plan.n_prompts * plan.n_samples,
        "n_chunks": len(plan.chunks),
        "n_prompt_tokens": n_prompt_tokens,
        "max_output_tokens": plan.n_prompts * plan.n_samples * plan.max_tokens,
        "keys": list(_list_keys(plan)),
    }


def describe_preview(found: dict[str, Any]) -> RenderableType:
    """Lay the plan out."""
    head = ("source", "rows", "prompts", "rejected", "not sampled", "why rejected")
    rows = [
        (
            source["source"],
            f"{source['n_rows']:,}",
            f"{source['n_prompts']:,}",
            f"{source['n_rejected']:,}",
            f"{source['n_not_sampled']:,}",
            ", ".join(f"{kind} {n:,}" for kind, n in sorted(source["rejections"].items())),
        )
        for source in found["sources"]
    ]
    keys = found["keys"]
    return Group(
        table(head, rows),
        "",
        f"{found['n_prompts']:,} prompts after {found['n_duplicates']:,} duplicates across sources,"
        f" {found['n_conversations']:,} conversations in {found['n_chunks']:,} chunks",
        f"{found['n_prompt_tokens']:,} prompt tokens in first turns; at most "
        f"{humanize.intword(found['max_output_tokens'])} output tokens",
        f"plan {found['plan_sha'][:12]}; {show_place(found['uri'])}: {found['store']}",
        "",
        f"{len(keys):,} keys would be written, and one under tokens/ for each part; among them:",
        *(f"  {key}" for key in (keys if len(keys) <= 12 else [*keys[:6], "...", *keys[-5:]])),
    )


def _describe_store(store: ArtifactStore) -> str:
    if store.head(layout.request_key()) is None:
        return "empty prefix, a run would begin here"
    return "a run is there; the same request resumes it"


def _list_keys(plan: Plan) -> Iterator[str]:
    """List what can be known now: not the tokens parts, nor how many shards there will be."""
    yield layout.probe_key()
    yield layout.request_key()
    for receipt in plan.extracted:
        yield from receipt.part_keys
        yield receipt.rejections_key
        yield layout.unsampled_key(receipt.source)
    yield from (chunk.prompts_key for chunk in plan.chunks)
    yield layout.plan_key()
    yield from (layout.data_key(chunk.id) for chunk in plan.chunks)
    yield layout.canary_key()
    yield layout.shard_key(0, 0)
    yield layout.report_key(0)
    yield layout.manifest_key(0)
