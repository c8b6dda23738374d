"""Extraction and planning as Prefect tasks: names, caching, and the way to a thread.

Enters: small values as arguments, and everything heavy or secret through `extraction_context`,
which never becomes a parameter. Leaves: receipts and the plan as persisted results, so that a rerun
of the flow reads no source again. The keys hold an explicit version and the place of the store: a
receipt of one prefix says nothing about another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.context import TaskRunContext

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.prompts.chunk import NO_WISHES, make_plan
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.extract import extract_prompts
from tasks.prompts.known import NOTHING_KNOWN, KnownPrompts
from tasks.prompts.record import (
    PROMPT_CODE_VERSION,
    ExtractReceipt,
    Plan,
    ResolvedSource,
    canonical_sha256,
)
from tasks.prompts.selection import Wishes
from tasks.storage.store import ArtifactStore

EXTRACT_VERSION = 2
PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class ExtractionContext:
    """What the tasks of this room work with; set by the flow before it calls them."""

    store: ArtifactStore
    template: ChatTemplate
    model: ModelConfig
    extraction: ExtractionConfig
    sources: Mapping[str, SourceConfig]
    hf_token: str | None
    spool_dir: Path
    known: KnownPrompts = NOTHING_KNOWN
    wishes: Wishes = NO_WISHES
    on_progress: Callable[[str, int, float], None] | None = None


extraction_context: ContextVar[ExtractionContext] = ContextVar("extraction_context")


def _place() -> str:
    return hashlib.sha256(extraction_context.get().store.uri.encode()).hexdigest()[:16]


def _extract_key(_: TaskRunContext, parameters: dict[str, Any]) -> str:
    source: ResolvedSource = parameters["source"]
    version = f"v{EXTRACT_VERSION}.{PROMPT_CODE_VERSION}"
    identity = canonical_sha256([source.model_dump(mode="json"), parameters["request_sha"]])
    return f"extract-{version}-{_place()}-{identity}"


def _plan_key(_: TaskRunContext, parameters: dict[str, Any]) -> str:
    receipts = [receipt.model_dump(mode="json") for receipt in parameters["receipts"]]
    rest = {name: value for name, value in parameters.items() if name != "receipts"}
    version = f"v{PLAN_VERSION}.{PROMPT_CODE_VERSION}"
    return f"plan-{version}-{_place()}-{canonical_sha256([receipts, rest])}"


@task(
    name="extract-source",
    task_run_name="extract-{source.key}",
    cache_key_fn=_extract_key,
    persist_result=True,
    result_serializer="json",
)
async def extract_source(source: ResolvedSource, request_sha: str) -> ExtractReceipt:
    """Extract one source (`extract.extract_prompts`) in a thread."""
    context = extraction_context.get()
    receipt = await asyncio.to_thread(
        extract_prompts,
        context.store,
        source,
        context.sources[source.key],
        template=context.template,
        model=context.model,
        extraction=context.extraction,
        hf_token=context.hf_token,
        spool_dir=context.spool_dir,
        known=context.known,
        on_progress=context.on_progress and partial(context.on_progress, source.key),
    )
    get_run_logger().info(
        "%s of request %s: %d rows, %d prompts, %d rejected %s, %d not sampled",
        receipt.source,
        request_sha[:12],
        receipt.n_rows,
        receipt.n_prompts,
        receipt.n_rejected,
        receipt.rejections,
        receipt.n_not_sampled,
    )
    return receipt


@task(
    name="plan-chunks",
    cache_key_fn=_plan_key,
    persist_result=True,
    result_serializer="json",
)
async def plan_chunks(
    request_sha: str,
    receipts: Sequence[ExtractReceipt],
    sampling: dict[str, float | int],
    n_samples: int,
    max_tokens: int,
) -> Plan:
    """Cut the prompts into chunks and freeze the plan (`chunk.make_plan`) in a thread."""
    context = extraction_context.get()
    # The configuration's order decides which source keeps a prompt, and not which task ended first.
    order = {key: index for index, key in enumerate(context.sources)}
    plan = await asyncio.to_thread(
        make_plan,
        context.store,
        request_sha=request_sha,
        receipts=sorted(receipts, key=lambda receipt: order[receipt.source]),
        model=context.model,
        template=context.template,
        extraction=context.extraction,
        sampling=sampling,
        n_samples=n_samples,
        max_tokens=max_tokens,
        spool_dir=context.spool_dir,
        wishes=context.wishes,
    )
    get_run_logger().info(
        "plan %s: %d prompts in %d chunks, %d duplicates across sources, %d outside the mix",
        plan.sha[:12],
        plan.n_prompts,
        len(plan.chunks),
        plan.n_duplicates,
        plan.n_outside_mix,
    )
    return plan
