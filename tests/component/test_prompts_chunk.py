"""The plan: chunks, the canary, and what refuses another plan or damaged prompts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tasks.chat.template import ChatTemplate
from tasks.errors import CorruptPart, RequestMismatch
from tasks.prompts.chunk import read_chunk
from tasks.prompts.config import ExtractionConfig
from tasks.storage.layout import plan_key, prompts_key
from tasks.storage.store import ArtifactStore
from tests.support.prompts import (
    MODEL,
    ask,
    extract_file,
    list_objects,
    other_store,
    plan_of,
    source_of,
)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate.load(MODEL)


def test_chunk_0_draws_on_all_sources_and_each_prompt_is_in_one_chunk(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipts = [
        extract_file(file_store, template, key, source_of(tmp_path, rows, key))
        for key, rows in (("big", ask(200)), ("twin", ask(50, 180)), ("tiny", ask(1, 900)))
    ]
    extraction = ExtractionConfig(chunk_size=60, canary_size=23)
    plan = plan_of(file_store, template, receipts, extraction)
    assert plan.n_duplicates == 20
    assert [chunk.n_prompts for chunk in plan.chunks] == [23, 60, 60, 60, 28]
    assert [chunk.id for chunk in plan.chunks] == [0, 1, 2, 3, 4]
    chunks = [read_chunk(file_store, chunk) for chunk in plan.chunks]
    canary = Counter(prompt.source.key for prompt in chunks[0])
    assert canary == {"big": 19, "twin": 3, "tiny": 1}
    prompts = [prompt for chunk in chunks for prompt in chunk]
    assert len({prompt.id for prompt in prompts}) == 231
    assert Counter(p.source.key for p in prompts) == {"big": 200, "twin": 30, "tiny": 1}
    assert len({prompt.source.key for prompt in chunks[1]}) > 1


def test_planning_again_gives_the_same_plan_and_another_plan_is_refused_before_it_writes(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipts = [extract_file(file_store, template, "mine", source_of(tmp_path, ask(40)))]
    plan = plan_of(file_store, template, receipts)
    before = list_objects(file_store)
    assert plan_of(file_store, template, receipts).sha == plan.sha
    with pytest.raises(RequestMismatch) as caught:
        plan_of(file_store, template, receipts, temperature=0.5)
    assert any("sampling.temperature" in line for line in caught.value.differences)
    with pytest.raises(RequestMismatch):
        plan_of(file_store, template, receipts, ExtractionConfig(canary_size=7))
    assert list_objects(file_store) == before
    assert plan_key() in before


def test_prompts_that_are_not_what_the_plan_says_are_refused(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    receipts = [extract_file(file_store, template, "mine", source_of(tmp_path, ask(40)))]
    plan = plan_of(file_store, template, receipts, ExtractionConfig(canary_size=20))
    swapped = plan.chunks[0].model_copy(update={"prompts_key": prompts_key(1)})
    missing = plan.chunks[0].model_copy(update={"prompts_key": prompts_key(7)})
    damaged = plan.chunks[0].model_copy(update={"prompts_key": plan_key()})
    for chunk in (swapped, missing, damaged):
        with pytest.raises(CorruptPart):
            read_chunk(file_store, chunk)
    lost = receipts[0].model_copy(update={"sha256": "0" * 64})
    with pytest.raises(CorruptPart):
        plan_of(other_store(tmp_path, "run2"), template, receipts)
    with pytest.raises(CorruptPart):
        plan_of(file_store, template, [lost])
