"""Assembly and merge as Prefect tasks: names, caching, and the way to a thread.

Enters: receipts as arguments, and store, plan and template through `tokens_context`. Leaves:
receipts as persisted results. The keys hold an explicit version and the place of the store; what
was made is found by its own key in the store too, so that a lost result costs a look and no work.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task
from prefect.context import TaskRunContext

from tasks.chat.template import ChatTemplate
from tasks.prompts.record import Chunk, Plan, canonical_sha256
from tasks.storage.record import PartReceipt
from tasks.storage.retry import RetryPart
from tasks.storage.store import ArtifactStore
from tasks.tokens.assemble import TOKENS_CODE_VERSION, assemble_part
from tasks.tokens.config import BaseDatasetConfig, MergeConfig, TokensConfig
from tasks.tokens.merge import merge_dataset
from tasks.tokens.pace import Tell
from tasks.tokens.record import MergeReceipt, SamplesReceipt

MERGE_VERSION = 3


@dataclass(frozen=True, slots=True)
class TokensContext:
    """What the tasks of this room work with; set by the flow before it calls them.

    Attributes:
        base_sha256: What the base dataset hashed to when the run began.
        scratch_dir: Folder on a disk with room for about twice the dataset.
        tell: Takes a line of progress of a long merge now and then.
    """

    store: ArtifactStore
    plan: Plan
    template: ChatTemplate
    tokens: TokensConfig
    merge: MergeConfig
    scratch_dir: Path
    base: BaseDatasetConfig | None = None
    base_sha256: str | None = None
    tell: Tell | None = None


tokens_context: ContextVar[TokensContext] = ContextVar("tokens_context")


def _place() -> str:
    return hashlib.sha256(tokens_context.get().store.uri.encode()).hexdigest()[:16]


def _assemble_key(_: TaskRunContext, parameters: dict[str, Any]) -> str:
    context = tokens_context.get()
    receipt: PartReceipt = parameters["receipt"]
    settings = canonical_sha256(
        [context.tokens.model_dump(mode="json"), context.plan.tokenizer_sha256]
    )
    identity = f"{parameters['plan_sha'][:16]}-{settings[:16]}-{receipt.sha256[:16]}"
    return f"assemble-v{TOKENS_CODE_VERSION}-{_place()}-{identity}"


def _merge_key(_: TaskRunContext, parameters: dict[str, Any]) -> str:
    context = tokens_context.get()
    samples: Sequence[SamplesReceipt] = parameters["samples"]
    identity = canonical_sha256(
        [
            parameters["plan_sha"],
            parameters["revision"],
            [receipt.sha256 for receipt in samples],
            parameters["superseded"],
            context.merge.model_dump(mode="json"),
            context.base.model_dump(mode="json") if context.base else None,
            context.base_sha256,
        ]
    )
    return f"merge-v{MERGE_VERSION}-{_place()}-{identity}"


@task(
    name="assemble-part",
    task_run_name="assemble-{chunk.id:06d}",
    cache_key_fn=_assemble_key,
    persist_result=True,
    result_serializer="json",
)
async def assemble_part_task(
    plan_sha: str, chunk: Chunk | RetryPart, receipt: PartReceipt
) -> SamplesReceipt:
    """Make the samples of one data part (`assemble.assemble_part`) in a thread."""
    context = tokens_context.get()
    samples = await asyncio.to_thread(
        assemble_part,
        context.store,
        context.plan,
        chunk,
        receipt,
        context.template,
        context.tokens,
    )
    get_run_logger().info(
        "chunk %d of plan %s: %d samples of %d generations, %d supervised tokens, dropped %s, "
        "%d held against their text, token sources %s, prompts cut %d, drift %s",
        chunk.id,
        plan_sha[:12],
        samples.n_samples,
        samples.n_generations,
        samples.n_supervised_tokens,
        samples.n_dropped,
        samples.n_checked,
        samples.token_sources,
        samples.n_cut,
        samples.drift,
    )
    return samples


@task(
    name="merge-dataset",
    task_run_name="merge-r{revision:04d}",
    cache_key_fn=_merge_key,
    persist_result=True,
    result_serializer="json",
)
async def merge_task(
    plan_sha: str,
    samples: Sequence[SamplesReceipt],
    revision: int,
    superseded: Mapping[str, Sequence[str]],
) -> MergeReceipt:
    """Merge all samples with the base dataset (`merge.merge_dataset`) in a thread."""
    context = tokens_context.get()
    receipt = await asyncio.to_thread(
        merge_dataset,
        context.store,
        context.plan,
        samples,
        context.base,
        context.merge,
        revision,
        template=context.template,
        superseded=superseded,
        base_sha256=context.base_sha256,
        scratch_dir=context.scratch_dir,
        tell=context.tell,
    )
    get_run_logger().info("dataset r%04d of plan %s: %s", revision, plan_sha[:12], receipt.counts)
    return receipt
