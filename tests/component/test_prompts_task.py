"""The tasks of this room: what their results are cached under, and the order they hold to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from prefect.context import TaskRunContext
from prefect.logging import disable_run_logger

from tasks.chat.template import ChatTemplate
from tasks.prompts.config import ExtractionConfig, RowMapping, SourceConfig
from tasks.prompts.record import ResolvedSource
from tasks.prompts.sources import resolve_source
from tasks.prompts.task import (
    ExtractionContext,
    extract_source,
    extraction_context,
    plan_chunks,
)
from tasks.storage.config import StoreConfig
from tasks.storage.store import ArtifactStore, open_store
from tests.support.prompts import MODEL, write_jsonl

RUN = cast("TaskRunContext", None)


@pytest.fixture
def context(file_store: ArtifactStore, tmp_path: Path) -> Iterator[ExtractionContext]:
    sources = {}
    for key in ("first", "second"):
        rows = [{"q": f"What is fact {i}?"} for i in range(12)]
        path = write_jsonl(tmp_path / f"{key}.jsonl", rows)
        sources[key] = SourceConfig(path=str(path), mapping=RowMapping(prompt="q"))
    made = ExtractionContext(
        store=file_store,
        template=ChatTemplate.load(MODEL),
        model=MODEL,
        extraction=ExtractionConfig(),
        sources=sources,
        hf_token="hf_secret",
        spool_dir=tmp_path / "spool",
    )
    token = extraction_context.set(made)
    yield made
    extraction_context.reset(token)


def resolve(context: ExtractionContext, key: str) -> ResolvedSource:
    return resolve_source(key, context.sources[key], None)


async def test_the_configurations_order_decides_which_source_keeps_a_prompt(
    context: ExtractionContext,
) -> None:
    with disable_run_logger():
        receipts = [
            await extract_source.fn(resolve(context, key), "0" * 64) for key in ("second", "first")
        ]
        plan = await plan_chunks.fn("0" * 64, receipts, {"top_p": 0.9}, 2, 300)
    assert [receipt.source for receipt in plan.extracted] == ["first", "second"]
    assert (plan.n_prompts, plan.n_duplicates, plan.n_samples) == (12, 12, 2)
    assert plan.sampling == {"top_p": 0.9}


async def test_a_result_is_cached_for_one_request_one_revision_and_one_store(
    context: ExtractionContext, tmp_path: Path
) -> None:
    make_key = extract_source.cache_key_fn
    assert make_key is not None

    def key_of(source: ResolvedSource, request_sha: str) -> str | None:
        return make_key(RUN, {"source": source, "request_sha": request_sha})

    source = resolve(context, "first")
    newer = source.model_copy(update={"revision": "f" * 64})
    keys = [
        key_of(source, "0" * 64), key_of(source, "1" * 64), key_of(newer, "0" * 64),
        key_of(resolve(context, "second"), "0" * 64),
    ]  # fmt: skip
    elsewhere = open_store(StoreConfig(uri=f"file://{tmp_path}/elsewhere/run"))
    extraction_context.set(
        ExtractionContext(elsewhere, context.template, context.model, context.extraction,
                          context.sources, None, context.spool_dir)
    )  # fmt: skip
    keys.append(key_of(source, "0" * 64))
    elsewhere.close()
    assert len(set(keys)) == 5
    assert all(key and key.startswith("extract-v2.") and "secret" not in key for key in keys)


async def test_a_plan_is_cached_under_all_that_decides_it(context: ExtractionContext) -> None:
    with disable_run_logger():
        receipt = await extract_source.fn(resolve(context, "first"), "0" * 64)
    make_key = plan_chunks.cache_key_fn
    assert make_key is not None
    parameters: dict[str, Any] = {
        "request_sha": "0" * 64, "receipts": [receipt], "sampling": {"top_p": 0.9},
        "n_samples": 1, "max_tokens": 300,
    }  # fmt: skip
    other = receipt.model_copy(update={"sha256": "f" * 64})
    changes: list[dict[str, Any]] = [
        {}, {"sampling": {"top_p": 0.8}}, {"n_samples": 2}, {"max_tokens": 301},
        {"receipts": [other]}, {"request_sha": "1" * 64},
    ]  # fmt: skip
    keys = [make_key(RUN, {**parameters, **change}) for change in changes]
    assert len(set(keys)) == len(changes)
    assert make_key(RUN, parameters) == keys[0]


@pytest.mark.parametrize("made", [extract_source, plan_chunks])
def test_results_are_persisted_as_json(made: Any) -> None:
    assert (made.persist_result, made.result_serializer) == (True, "json")
