"""One run over a batch: what journals hold becomes a part, and the run's watch is told in order."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.generate import generate_chunk, spool_folder
from tasks.completions.journal import Journal
from tasks.completions.rolling import RunWatch
from tests.support.generation import build_run, invent_prompts, load_template
from tests.support.outcomes import complete, conclude


class WatchOnOneThread(RunWatch):
    """Notes which threads tell it anything: it has no lock."""

    def __init__(self, n_conversations: int) -> None:
        super().__init__(GatesConfig(), n_conversations=n_conversations, failure_budget=1.0)
        self.threads: list[int] = []

    def add(
        self, chunk_id: int, name: str, flags: Collection[Gate], *, replayed: bool = False
    ) -> None:
        self.threads.append(threading.get_ident())
        super().add(chunk_id, name, flags, replayed=replayed)


async def test_what_is_replayed_is_told_to_the_watch_where_other_chunks_tell_it(
    tmp_path: Path,
) -> None:
    template = load_template()
    prompts = invent_prompts(template, 6)
    run = build_run(tmp_path, template, [prompts])
    journal = Journal(spool_folder(run.spool_dir, run.plan.sha, 0), fsync_every=64)
    for number, prompt in enumerate(prompts):
        journal.append_outcome(conclude(complete(run, prompt, "Let me see.", f"It is {number}.")))
    await journal.finish()
    journal.close()
    watch = WatchOnOneThread(len(prompts))
    # No server is needed: every conversation is in the journal.
    async with run.dispatch([]) as dispatcher:
        receipt = await generate_chunk(run.context(dispatcher, watch=watch), run.plan.chunks[0])
    assert receipt.footer.n_completed == 6
    assert watch.threads == [threading.get_ident()] * 6
