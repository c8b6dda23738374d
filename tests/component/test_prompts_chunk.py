"""The plan: chunks, the canary, and what refuses another plan or damaged prompts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tasks.chat.template import ChatTemplate
from tasks.errors import CorruptPart, RequestMismatch
from tasks.prompts.chunk import read_chunk, read_plan
from tasks.prompts.config import ExtractionConfig
from tasks.prompts.extract import has_extracted
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


def test_the_frozen_plan_is_read_back_and_a_damaged_one_is_named(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path
) -> None:
    assert read_plan(file_store) is None
    receipts = [extract_file(file_store, template, "one", source_of(tmp_path, ask(9), "one"))]
    plan = plan_of(file_store, template, receipts)
    assert read_plan(file_store) == plan
    path = tmp_path / "store/run" / plan_key()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptPart, match="plan there is damaged") as told:
        read_plan(file_store)
    assert "Move the object away" in told.value.remedy
    path.unlink()
    prompts = tmp_path / "store/run" / prompts_key(0)
    before = prompts.read_bytes()
    prompts.write_bytes(b"damaged")
    with pytest.raises(CorruptPart, match="not what was recorded") as told:
        read_chunk(file_store, plan.chunks[0])
    assert "Move this object and _run/plan.json away" in told.value.remedy
    prompts.unlink()
    assert plan_of(file_store, template, receipts) == plan, "the remedies give the same plan"
    assert prompts.read_bytes() == before


@pytest.mark.parametrize("kind", ["part-000000", "rejections", "seen"])
def test_a_kept_receipt_counts_only_while_its_objects_exist(
    file_store: ArtifactStore, template: ChatTemplate, tmp_path: Path, kind: str
) -> None:
    receipt = extract_file(file_store, template, "one", source_of(tmp_path, ask(9), "one"))
    assert has_extracted(file_store, receipt)
    (tmp_path / f"store/run/extracted/one/{kind}.parquet").unlink()
    assert not has_extracted(file_store, receipt)
