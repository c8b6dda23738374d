"""Parts that lack are published again from this machine's journals, those of retries as well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from flows.rebuild import republish
from flows.stages.opened import Run
from tasks.completions.config import GatesConfig
from tasks.completions.generate import retry_folder
from tasks.completions.journal import Journal
from tasks.completions.record import Completion, Failure, Outcome
from tasks.completions.survey import freeze_failures
from tasks.prompts.record import Prompt
from tasks.storage.retry import Standing, find_retry_part, split_retry
from tests.support.generation import GenerationRun
from tests.support.merging import plan_merge
from tests.support.outcomes import complete, conclude, publish_outcomes

LATER = Failure("deadline", "", retryable=True, attempts=5, endpoints=[])


def fail(prompt_id: str) -> Outcome:
    return Outcome(prompt_id, 0, "failed", [], LATER, "a")


@pytest.mark.parametrize("n_answered", [1, 2])
def test_an_open_retry_is_published_where_its_journals_hold_every_answer(
    tmp_path: Path, n_answered: int
) -> None:
    run = plan_merge(tmp_path)
    plan = run.plan
    parts = tuple(
        publish_outcomes(
            run,
            chunk.id,
            [
                fail(prompt.id) if chunk.id == 0 and row < 2 else conclude(answer(run, prompt))
                for row, prompt in enumerate(run.prompts[chunk.id])
            ],
        )
        for chunk in plan.chunks
    )
    frozen = freeze_failures(run.store, plan, Standing(parts, (), ()), GatesConfig())
    assert frozen is not None
    (share,) = split_retry(frozen)
    folder = retry_folder(run.spool_dir, plan, share)
    asyncio.run(write_journal(run, folder, n_answered))
    told: list[str] = []
    opened = SimpleNamespace(
        store=run.store,
        template=run.template,
        settings=SimpleNamespace(spool_dir=run.spool_dir),
        config=SimpleNamespace(generation=run.generation),
        narrator=SimpleNamespace(note=told.append),
    )
    standing = Standing(parts, (), (frozen,))
    asyncio.run(republish(cast("Run", opened), plan, standing))
    part = find_retry_part(run.store, plan.sha, share)
    if n_answered == 1:
        assert part is None, "the other answer must be asked for"
        assert folder.exists(), "and what is there is kept"
        return
    assert part is not None
    assert (part.footer.n_rows, part.footer.n_completed) == (2, 2)
    assert told == ["retry 1, part 0 is published again from its journal"]
    run.store.close()


def answer(run: GenerationRun, prompt: Prompt) -> Completion:
    return complete(run, prompt, "Hm.", "As asked.")


async def write_journal(run: GenerationRun, folder: Path, n: int) -> None:
    journal = Journal(folder, fsync_every=64)
    for prompt in run.prompts[0][:n]:
        journal.append_outcome(conclude(answer(run, prompt)))
    await journal.finish()
    journal.close()
