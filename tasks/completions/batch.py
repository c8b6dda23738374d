"""One run over a batch of conversations: what is missing, what came, and the part they become.

Enters: a GenerationContext, a Batch, and what its journals hold. Leaves: the receipt of its part.
It exists as the place where the guarantees meet: what the journals hold is never asked for again,
gates judge before anything is published, and every conversation has one outcome in the part.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from tasks.completions.config import Gate
from tasks.completions.context import Batch, GenerationContext
from tasks.completions.conversation import Conversation, Target
from tasks.completions.journal import Journal, Place
from tasks.completions.progress import ChunkProgress
from tasks.completions.quality import stop_by_gates
from tasks.completions.record import Completion, Outcome, decode_outcome
from tasks.completions.redo import set_aside
from tasks.completions.replay import Replay
from tasks.completions.sweep import sweep_chunk
from tasks.completions.tally import ChunkTally
from tasks.errors import AccountingError, FailureBudgetExceeded, MaskError, TokenMismatch
from tasks.prompts.record import Prompt
from tasks.storage.layout import PartPlace, part_key
from tasks.storage.part import publish_part
from tasks.storage.record import PartReceipt
from tasks.storage.writer import PartWriter

_Judged = tuple[str, frozenset[Gate] | None]
"""A conversation's name and its flags; None: it has no answer to judge."""


class _Missing(NamedTuple):
    """A conversation without a terminal outcome, and its place among them."""

    order: int
    key: tuple[str, int]
    prompt: Prompt


class BatchRun:
    """One run over a batch, begun anew or taken up from its journals."""

    def __init__(self, ctx: GenerationContext, batch: Batch, replay: Replay) -> None:
        """Tell what the journals hold from what is missing."""
        self._ctx = ctx
        self._batch = batch
        self._replay = replay
        self._id = batch.header.chunk_id
        self._target = Target.from_plan(ctx.plan, ctx.template, ctx.dispatcher, ctx.generation)
        self._tally = ChunkTally(batch.gates, thinking=ctx.plan.thinking)
        self._rows: dict[tuple[str, int], Place] = {}
        self._missing: list[_Missing] = []
        for key, prompt in batch.asked.items():
            place = replay.rows.get(key)
            if place is None:
                self._missing.append(_Missing(len(self._missing), key, prompt))
            else:
                self._rows[key] = place
        self._n_taken = 0
        self._n_workers = 0
        self._journal: Journal
        self._progress: ChunkProgress

    async def run(self) -> PartReceipt:
        """Generate, judge, publish, and clear the spool.

        Raises:
            RunError: as generate_chunk.
        """
        ctx = self._ctx
        if self._batch.watch is not None:
            self._batch.watch.begin(self._id)
        for named in await asyncio.to_thread(self._count_replayed):
            self._tell_watch(*named, replayed=True)
        self._progress = ChunkProgress(
            self._id, len(self._batch.asked), self._tally, ctx.dispatcher, ctx.on_progress
        )
        self._check_budget()
        ctx.dispatcher.window.note_begun(self._id, len(self._rows))
        self._journal = Journal(self._batch.folder, fsync_every=ctx.generation.fsync_every)
        try:
            try:
                await self._generate_missing()
            finally:
                # Also when cancelled: what came is on the disk before anything else happens.
                await self._journal.finish()
            self._judge()
            receipt = await self._publish()
        finally:
            self._journal.close()
        self._clear_spool()
        self._progress.tell(is_done=True)
        return receipt

    def _count_replayed(self) -> list[_Judged]:
        """Count what the journals hold, on a thread.

        The run's watch is told afterwards, on the loop: other batches tell it meanwhile.
        """
        return [self._judge_one(decode_outcome(place.read())) for place in self._rows.values()]

    def _judge_one(self, outcome: Outcome) -> _Judged:
        flags = self._tally.add(outcome)
        return f"{outcome.prompt_id}#s{outcome.sample}", flags if outcome.completions else None

    def _tell_watch(
        self, name: str, flags: frozenset[Gate] | None, *, replayed: bool = False
    ) -> None:
        watch = self._batch.watch
        if watch is None:
            return
        if flags is None:
            watch.add_failed(self._id)
        else:
            watch.add(self._id, name, flags, replayed=replayed)

    async def _generate_missing(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._grow(group)
        except BaseExceptionGroup as failures:
            # The first one ended the batch and cancelled the rest.
            raise failures.exceptions[0] from None

    def _grow(self, group: asyncio.TaskGroup) -> None:
        """Add a worker while there is work, up to one a slot of the servers there are now."""
        if self._n_taken < len(self._missing) and self._n_workers < max(
            1, self._ctx.dispatcher.capacity
        ):
            self._n_workers += 1
            group.create_task(self._work(group))

    async def _work(self, group: asyncio.TaskGroup) -> None:
        while self._n_taken < len(self._missing):
            missing = self._missing[self._n_taken]
            self._n_taken += 1
            self._ctx.dispatcher.window.note_begun(self._id)
            self._grow(group)
            await self._hold(missing)
        self._n_workers -= 1

    async def _hold(self, missing: _Missing) -> None:
        key = missing.key
        conversation = Conversation(
            self._target,
            missing.prompt,
            key[1],
            order=(self._id, missing.order),
            attempt=self._journal.name,
            keep_turn=self._keep_turn,
        )
        outcome = await conversation.hold(self._replay.half_done.get(key))
        fallback = self._batch.fallbacks.get(key)
        if fallback is not None and len(outcome.completions) < len(fallback.completions):
            outcome = fallback
        self._note_servers(outcome.completions)
        self._rows[key] = self._journal.append_outcome(outcome)
        self._tell_watch(*self._judge_one(outcome))
        if outcome.failure is not None:
            self._check_budget()
        self._progress.note(outcome)

    def _keep_turn(self, attempt: str, completion: Completion) -> None:
        self._note_servers([completion])
        self._journal.append_turn(attempt, completion)

    def _note_servers(self, completions: list[Completion]) -> None:
        versions = self._ctx.dispatcher.server_versions
        for completion in completions:
            version = versions.get(completion.endpoint)
            if version is not None:
                self._journal.note_server(completion.endpoint, version)

    def _check_budget(self) -> None:
        n_failed, n_all = self._tally.statuses["failed"], len(self._batch.asked)
        if n_failed > self._batch.failure_budget * n_all:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self._tally.failures.most_common())
            raise FailureBudgetExceeded(
                f"{n_failed} of {n_all} conversations have no answer ({kinds}); the budget is "
                f"{self._batch.failure_budget:.1%}",
                where=self._where(),
                remedy="Run again: failures of servers and network are tried anew. Where rows are "
                "refused (bad_request), raise generation.failure_budget, and try them anew later "
                "with `draftmill retry-failures`.",
            )

    def _judge(self) -> None:
        own, watch = self._tally.gates.judge(), self._batch.watch
        named = {verdict.gate for verdict in own}
        # What the batch shows alone need not be said of the run as well.
        of_run = watch.judge() if watch is not None else ()
        verdicts = (*own, *(verdict for verdict in of_run if verdict.gate not in named))
        if verdicts:
            raise stop_by_gates(verdicts, self._where())

    def _where(self) -> str:
        return f"{self._batch.name}, journals in {self._batch.folder}"

    async def _publish(self) -> PartReceipt:
        batch, store = self._batch, self._ctx.store
        lost = [key for key in batch.asked if key not in self._rows]
        if lost or self._tally.n_done != len(batch.asked):
            raise AccountingError(
                f"{len(batch.asked)} conversations, {self._tally.n_done} outcomes, "
                f"{len(lost)} without one",
                where=batch.name,
            )
        path = batch.folder / f"{self._journal.name}.part"
        try:
            await asyncio.to_thread(self._write_part, path)
            await self._inspect(path)
            key = part_key(PartPlace(batch.header.retry, self._id, 0))
            return await store.run(publish_part, store, key, path, list(batch.asked))
        finally:
            path.unlink(missing_ok=True)

    async def _inspect(self, path: Path) -> None:
        """Have the part looked at; where its ids are no good, no later run takes them up."""
        if self._batch.inspect is None:
            return
        try:
            await self._batch.inspect(path)
        except (MaskError, TokenMismatch):
            set_aside(self._batch.folder, (*self._replay.paths, self._journal.path))
            raise

    def _write_part(self, path: Path) -> None:
        """Copy the rows, in the order of the prompts, from where they lie."""
        writer = PartWriter(path, self._batch.header)
        try:
            for key in self._batch.asked:
                writer.append(self._rows[key].read())
        except BaseException:
            writer.abandon()
            raise
        versions = {**self._replay.servers, **self._ctx.dispatcher.server_versions}
        slots = {load.base_url: load.slots for load in self._ctx.dispatcher.loads()}
        take_energy = self._ctx.take_energy
        used = take_energy() if take_energy is not None else None
        writer.finish({**self._tally.to_footer(versions, slots), "watt_hours": used})

    def _clear_spool(self) -> None:
        """Remove the journals: the store has acknowledged the part, and only it counts now.

        Kept until the manifest they would fill the disk (a whole run's answers), and a part that
        is damaged later gets a revision from the servers, not from here. Journals that another
        process holds are its own.
        """
        for path in (*self._replay.paths, self._journal.path):
            path.unlink(missing_ok=True)
        sweep_chunk(self._batch.folder)
