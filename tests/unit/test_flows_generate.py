"""Which chunks a run generates, and how long it goes on when some fail. No server is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.stages.generate import generate_chunks, generate_retries
from flows.stages.opened import Run
from tasks.completions.config import GatesConfig
from tasks.completions.dispatch import Dispatcher
from tasks.errors import NoEndpoint, SpoolFailed
from tasks.prompts.record import Chunk
from tasks.storage.part import find_part
from tasks.storage.record import PartReceipt
from tasks.storage.retry import RetryPart, Standing
from tests.support.generation import (
    GenerationRun,
    build_run,
    invent_prompts,
    load_template,
    make_endpoint,
)
from tests.support.outcomes import complete, conclude, publish_outcomes

N_SLOTS = 4
N_PROMPTS = 8
"""Of each chunk: more than there are slots, so that they open one after the other."""

Work = Callable[[Dispatcher, Any], Awaitable[PartReceipt]]


class Tried:
    """A run whose tasks do as they are told, over servers that nobody asks."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, n_chunks: int, work: Work
    ) -> None:
        template = load_template()
        prompts = invent_prompts(template, N_PROMPTS * n_chunks)
        starts = range(0, len(prompts), N_PROMPTS)
        self.generation: GenerationRun = build_run(
            folder, template, [prompts[start : start + N_PROMPTS] for start in starts]
        )
        self.asked: list[int] = []
        self.shown: list[PartReceipt] = []
        config = self.generation.generation.model_copy(update={"surplus": 0})
        dispatcher = Dispatcher([make_endpoint("http://127.0.0.1:1", slots=N_SLOTS)], config)

        @asynccontextmanager
        async def open_dispatcher(*_: object) -> AsyncIterator[Dispatcher]:
            async with dispatcher:
                yield dispatcher

        def persist(*_: object, **__: object) -> Callable[[str, Any], Awaitable[PartReceipt]]:
            async def run_task(_: str, what: Chunk | RetryPart) -> PartReceipt:
                self.asked.append(what.id)
                return await work(dispatcher, what)

            return run_task

        monkeypatch.setattr("flows.stages.generate._open_dispatcher", open_dispatcher)
        self.run = cast(
            "Run",
            SimpleNamespace(
                config=SimpleNamespace(gates=GatesConfig(), generation=config),
                settings=SimpleNamespace(spool_dir=self.generation.spool_dir),
                store=self.generation.store,
                narrator=SimpleNamespace(progress=lambda _: None, note=lambda _: None),
                persisted=persist,
            ),
        )

    def publish(self, chunk_id: int) -> PartReceipt:
        """Put the part of a chunk in the store."""
        run = self.generation
        prompts = run.prompts[chunk_id]
        return publish_outcomes(
            run, chunk_id, [conclude(complete(run, prompt, "Hm.", "Five.")) for prompt in prompts]
        )

    async def generate(self) -> None:
        """Generate what the store lacks."""
        run = self.generation
        found = [
            find_part(run.store, chunk.id, run.plan.sha, chunk.input_sha256)
            for chunk in run.plan.chunks
        ]

        async def check(*_: object) -> None:
            return

        async def show(_: object, __: object, part: PartReceipt, ___: int) -> None:
            self.shown.append(part)

        standing = Standing(tuple(part for part in found if part), (), ())
        await generate_chunks(
            self.run, run.plan, [], standing, check_canary=check, show_canary=show
        )


async def test_a_run_that_is_taken_up_begins_with_what_lacks_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(_: Dispatcher, chunk: Chunk) -> PartReceipt:
        return tried.publish(chunk.id)

    tried = Tried(tmp_path, monkeypatch, 4, answer)
    canary = tried.publish(0)
    tried.publish(2)
    await tried.generate()
    assert tried.asked == [1, 3]
    assert tried.shown == [canary]


@pytest.mark.parametrize(
    ("error", "asked"), [(NoEndpoint("gone"), [1]), (SpoolFailed("full"), [1, 2, 3])]
)
async def test_one_failed_chunk_leaves_the_others_be_unless_there_is_no_server_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, asked: list[int]
) -> None:
    async def fail(_: Dispatcher, __: Chunk) -> PartReceipt:
        raise error

    tried = Tried(tmp_path, monkeypatch, 4, fail)
    tried.publish(0)
    with pytest.raises(type(error)):
        await tried.generate()
    assert tried.asked == asked


async def test_the_next_share_of_a_retry_opens_while_the_one_before_runs_out_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_at_once: list[int] = []

    async def answer(dispatcher: Dispatcher, share: RetryPart) -> PartReceipt:
        await asyncio.sleep(0)  # the other one asks to open
        dispatcher.window.note_begun(share.id, N_PROMPTS)
        open_at_once.append(dispatcher.window.n_open)
        return receipt

    tried = Tried(tmp_path, monkeypatch, 1, answer)
    receipt = tried.publish(0)
    # The shares before them have their parts.
    conversations = cast("Any", [None] * N_PROMPTS)
    shares = [
        RetryPart.model_construct(
            retry=1, id=number, reason="failures", gates=(), conversations=conversations
        )
        for number in (3, 4)
    ]
    await generate_retries(tried.run, tried.generation.plan, [], shares)
    assert tried.asked == [3, 4]
    assert open_at_once[0] == 2
