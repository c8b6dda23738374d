"""Generation as a Prefect task: names, caches, retries; the work is in generate.py.

Enters: the plan's sha and a Chunk; the rest comes by `generation_context`, because clients and
stores are no inputs to hash. Leaves: the part's receipt, persisted as JSON. A cached receipt does
not prove that its part is still there: `needs_refresh` asks the store, which decides.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from prefect import task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.tasks import Task

from tasks.completions.context import GenerationContext
from tasks.completions.generate import generate_chunk, generate_retry
from tasks.errors import (
    FailureBudgetExceeded,
    KeyTaken,
    MaskError,
    NoEndpoint,
    StoppedByGate,
    StoreUnreachable,
    TokenMismatch,
    UserError,
)
from tasks.prompts.record import Chunk
from tasks.storage.part import find_part
from tasks.storage.record import PartReceipt
from tasks.storage.retry import RetryPart
from tasks.storage.store import ArtifactStore

# Raised by hand whenever generating would make another part of the same plan and chunk.
VERSION = 1

generation_context: ContextVar[GenerationContext] = ContextVar("generation_context")

# Trying the chunk again at once cannot help: the user decides, or the servers are gone.
_FINAL = (
    StoppedByGate,
    FailureBudgetExceeded,
    MaskError,
    TokenMismatch,
    KeyTaken,
    NoEndpoint,
    UserError,
)
_RETRIES = 2
_RETRY_SECONDS = 10


def _name_result(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Key of the cached receipt: what the part depends on, endpoints absent."""
    del context
    chunk: Chunk = parameters["chunk"]
    return f"generate-v{VERSION}-{parameters['plan_sha']}-{chunk.id}-{chunk.input_sha256}"


def _name_retry(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Key of the cached receipt of a share of a retry."""
    del context
    share: RetryPart = parameters["share"]
    plan_sha = parameters["plan_sha"]
    return f"retry-v{VERSION}-{plan_sha}-{share.retry}-{share.id}-{share.input_sha256}"


def _may_retry(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Retry a chunk after a fault of the moment only, such as a store that did not answer."""
    del task, task_run
    # The engine hands over the exception itself as the state's data.
    return isinstance(state.data, StoreUnreachable) or not isinstance(state.data, _FINAL)


@task(
    name="generate-chunk",
    task_run_name="generate-chunk-{chunk.id}",
    cache_key_fn=_name_result,
    persist_result=True,
    result_serializer="json",
    retries=_RETRIES,
    retry_delay_seconds=_RETRY_SECONDS,
    retry_condition_fn=_may_retry,
)
async def generate_chunk_task(plan_sha: str, chunk: Chunk) -> PartReceipt:
    """Generate one chunk with the context of this run.

    Raises:
        ValueError: the context holds another plan.
        RunError: as generate_chunk.
    """
    return await generate_chunk(_take_context(plan_sha), chunk)


@task(
    name="generate-retry",
    task_run_name="generate-retry-{share.retry}-{share.id}",
    cache_key_fn=_name_retry,
    persist_result=True,
    result_serializer="json",
    retries=_RETRIES,
    retry_delay_seconds=_RETRY_SECONDS,
    retry_condition_fn=_may_retry,
)
async def generate_retry_task(plan_sha: str, share: RetryPart) -> PartReceipt:
    """Ask a share of a retry anew with the context of this run.

    Raises:
        ValueError: the context holds another plan.
        RunError: as generate_retry.
    """
    return await generate_retry(_take_context(plan_sha), share)


def _take_context(plan_sha: str) -> GenerationContext:
    context = generation_context.get()
    if context.plan.sha != plan_sha:
        raise ValueError("generation_context holds another plan")
    return context


async def needs_refresh(store: ArtifactStore, plan_sha: str, chunk: Chunk) -> bool:
    """Whether a chunk must run whatever the cache says, because the store has no valid part.

    Use: `generate_chunk_task.with_options(refresh_cache=await needs_refresh(...))`.

    Raises:
        KeyTaken: the chunk's key holds the part of another plan.
        StoreError: the store failed.
    """
    return await store.run(find_part, store, chunk.id, plan_sha, chunk.input_sha256) is None
