"""A run that pauses after its canary shows it once. No server is asked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from flows.stages.answer import complete_parts
from flows.stages.fleet import Fleet
from flows.stages.opened import Run
from tasks.prompts.record import Plan
from tasks.storage.record import PartReceipt, RetriedConversation, RetryList
from tasks.storage.retry import Standing
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.outcomes import complete, conclude, publish_outcomes


@pytest.mark.parametrize("was_there", [False, True])
async def test_the_canary_is_shown_once_whether_it_was_just_made_or_stood_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 2)
    generation = build_run(tmp_path, template, [prompts[:1], prompts[1:]])
    canary = publish_outcomes(
        generation, 0, [conclude(complete(generation, prompts[0], "Hm.", "Five."))]
    )
    stands = [] if was_there else [Standing((), (), ())]
    stands.append(Standing((canary,), (), ()))
    shown: list[PartReceipt] = []

    async def find(_: Run, __: Plan) -> Standing:
        return stands.pop(0)

    async def show(_: Run, __: Plan, part: PartReceipt, *___: int) -> None:
        shown.append(part)

    async def generate(*_: object, **__: object) -> None:
        shown.append(canary)

    async def name_endpoints() -> list[object]:
        return []

    monkeypatch.setattr("flows.stages.answer.find_standing", find)
    monkeypatch.setattr("flows.stages.answer.show_canary", show)
    monkeypatch.setattr("flows.stages.answer.generate_chunks", generate)
    run = cast(
        "Run",
        SimpleNamespace(
            config=SimpleNamespace(gates=SimpleNamespace(pause_after_canary=True)),
            narrator=SimpleNamespace(stage=lambda *_: None),
        ),
    )
    fleet = cast("Fleet", SimpleNamespace(endpoints=name_endpoints))
    assert await complete_parts(run, generation.plan, fleet) is None
    assert shown == [canary]


async def test_the_retry_of_a_run_of_one_chunk_awaits_no_review(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 1)
    generation = build_run(tmp_path, template, [prompts])
    canary = publish_outcomes(generation, 0, [conclude(complete(generation, prompts[0], "", "5"))])
    lost = RetriedConversation(
        prompt_id=prompts[0].id,
        sample=0,
        chunk_id=0,
        part_key=canary.key,
        part_sha256=canary.sha256,
        status="failed",
        failure="timeout",
        flags=(),
        n_generations=0,
        n_prompt_tokens=0,
        n_output_tokens=0,
    )
    asked = RetryList(
        retry=1, plan_sha=generation.plan.sha, reason="failures", gates=(), conversations=(lost,)
    )

    class Asked(Exception):
        """The retry was begun."""

    async def find(_: Run, __: Plan) -> Standing:
        return Standing((canary,), (), (asked,))

    async def retry(*_: object) -> None:
        raise Asked

    async def name_endpoints() -> list[object]:
        return []

    monkeypatch.setattr("flows.stages.answer.find_standing", find)
    monkeypatch.setattr("flows.stages.answer.generate_retries", retry)
    gates = SimpleNamespace(pause_after_canary=True)
    narrator = SimpleNamespace(stage=lambda *_: None)
    run = cast("Run", SimpleNamespace(config=SimpleNamespace(gates=gates), narrator=narrator))
    fleet = cast("Fleet", SimpleNamespace(endpoints=name_endpoints))
    with pytest.raises(Asked):
        await complete_parts(run, generation.plan, fleet)
