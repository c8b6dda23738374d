"""One chunk of prompts to one part of outcomes, exactly once.

Enters: a GenerationContext and a Chunk. Leaves: the receipt of the chunk's part, which stands in
the store when this returns. It exists as the place where the guarantees meet: a part that exists is
never made again, what the journals hold is never asked for again, gates judge before anything is
published, and every conversation of the chunk has one outcome in the part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tasks.chat.template import ChatTemplate
from tasks.completions.config import GatesConfig, GenerationConfig
from tasks.completions.conversation import Conversation, Target
from tasks.completions.dispatch import Dispatcher
from tasks.completions.journal import Journal, Place, Replay
from tasks.completions.record import Completion, Outcome
from tasks.completions.redo import set_condemned_aside
from tasks.completions.tally import ChunkTally
from tasks.errors import AccountingError, FailureBudgetExceeded, StoppedByGate
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import Chunk, Plan, Prompt
from tasks.storage.layout import data_key
from tasks.storage.part import PartWriter, find_part, publish_part
from tasks.storage.record import PartHeader, PartReceipt
from tasks.storage.store import ArtifactStore

_PROGRESS_SECONDS = 1.0
_OUTCOME = msgspec.json.Decoder(Outcome)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a chunk is; `n_in_flight` is over all chunks of the dispatcher."""

    chunk_id: int
    n_conversations: int
    n_done: int
    n_failed: int
    n_replayed: int
    n_output_tokens: int
    n_in_flight: int


@dataclass(frozen=True, slots=True)
class GenerationContext:
    """What all chunks of a run share. `on_progress` is called at most once a second a chunk."""

    plan: Plan
    template: ChatTemplate
    store: ArtifactStore
    dispatcher: Dispatcher
    spool_dir: Path
    generation: GenerationConfig
    gates: GatesConfig
    on_progress: Callable[[Progress], None] | None = None


async def generate_chunk(ctx: GenerationContext, chunk: Chunk) -> PartReceipt:
    """Generate what is missing of a chunk and publish its part; existence means done.

    Raises:
        StoppedByGate: a gate is past its threshold; nothing was published.
        FailureBudgetExceeded: too many conversations have no answer; nothing was published.
        NoEndpoint: no server was admitted for too long.
        SpoolFailed: a journal cannot be written.
        KeyTaken: the chunk's key holds the part of another plan.
        StoreError: the store failed.
    """
    plan_sha = ctx.plan.sha
    store = ctx.store
    found = await store.run(find_part, store, chunk.id, plan_sha, chunk.input_sha256)
    if found is not None:
        return found
    prompts = await store.run(read_chunk, store, chunk)
    folder = spool_folder(ctx.spool_dir, plan_sha, chunk.id)
    await asyncio.to_thread(set_condemned_aside, folder, ctx.gates, thinking=ctx.plan.thinking)
    with await asyncio.to_thread(Replay, folder) as replay:
        run = _ChunkRun(
            ctx, chunk, plan_sha=plan_sha, prompts=prompts, folder=folder, replay=replay
        )
        return await run.run()


def spool_folder(spool_dir: Path, plan_sha: str, chunk_id: int) -> Path:
    """Say where a chunk's journals lie."""
    return spool_dir / plan_sha[:16] / f"chunk-{chunk_id:06d}"


@dataclass(frozen=True, slots=True)
class _Missing:
    """A conversation without a terminal outcome, and its place in the chunk."""

    index: int
    prompt: Prompt
    sample: int


class _ChunkRun:
    """One run over a chunk: what is missing, what came, and the journal that holds it."""

    def __init__(
        self,
        ctx: GenerationContext,
        chunk: Chunk,
        *,
        plan_sha: str,
        prompts: list[Prompt],
        folder: Path,
        replay: Replay,
    ) -> None:
        self._ctx = ctx
        self._chunk = chunk
        self._plan_sha = plan_sha
        self._folder = folder
        self._replay = replay
        self._target = Target.from_plan(ctx.plan, ctx.template, ctx.dispatcher, ctx.generation)
        self._tally = ChunkTally(ctx.gates, thinking=ctx.plan.thinking)
        self._conversations = [
            (prompt.id, sample) for prompt in prompts for sample in range(ctx.plan.n_samples)
        ]
        self._rows: dict[tuple[str, int], Place] = {}
        self._missing: list[_Missing] = []
        for prompt in prompts:
            for sample in range(ctx.plan.n_samples):
                place = replay.rows.get((prompt.id, sample))
                if place is None:
                    self._missing.append(_Missing(len(self._missing), prompt, sample))
                else:
                    self._rows[prompt.id, sample] = place
        self._n_taken = 0
        self._n_workers = 0
        self._told_at = 0.0
        self._journal: Journal

    async def run(self) -> PartReceipt:
        """Generate, judge, publish, and clear the spool."""
        await asyncio.to_thread(self._count_replayed)
        self._check_budget()
        self._ctx.dispatcher.window.note_begun(self._chunk.id, len(self._rows))
        self._journal = Journal(self._folder, fsync_every=self._ctx.generation.fsync_every)
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
        self._tell(always=True)
        return receipt

    def _count_replayed(self) -> None:
        for place in self._rows.values():
            self._tally.add(_OUTCOME.decode(place.read()))

    async def _generate_missing(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._grow(group)
        except BaseExceptionGroup as failures:
            # The first one ended the chunk and cancelled the rest.
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
            self._ctx.dispatcher.window.note_begun(self._chunk.id)
            self._grow(group)
            await self._hold(missing)
        self._n_workers -= 1

    async def _hold(self, missing: _Missing) -> None:
        key = (missing.prompt.id, missing.sample)
        conversation = Conversation(
            self._target,
            missing.prompt,
            missing.sample,
            order=(self._chunk.id, missing.index),
            attempt=self._journal.name,
            keep_turn=self._keep_turn,
        )
        outcome = await conversation.hold(self._replay.half_done.get(key))
        self._note_servers(outcome.completions)
        self._rows[key] = self._journal.append_outcome(outcome)
        self._tally.add(outcome)
        self._check_budget()
        self._tell()

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
        n_failed = self._tally.statuses["failed"]
        n_all = len(self._conversations)
        if n_failed > self._ctx.generation.failure_budget * n_all:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self._tally.failures.most_common())
            raise FailureBudgetExceeded(
                f"{n_failed} of {n_all} conversations have no answer ({kinds}); the budget is "
                f"{self._ctx.generation.failure_budget:.1%}",
                where=f"chunk {self._chunk.id}, journals in {self._folder}",
                remedy="Run again: failures of servers and network are tried anew. To try refused "
                "rows (bad_request) anew as well, move the journals away.",
            )

    def _judge(self) -> None:
        verdicts = self._tally.gates.judge()
        if verdicts:
            names = ", ".join(verdict.gate for verdict in verdicts)
            raise StoppedByGate(
                f"answers are past the threshold of: {names}",
                verdicts=tuple(map(str, verdicts)),
                where=f"chunk {self._chunk.id}, journals in {self._folder}",
                remedy="Look at the answers named. If they are as they should be, run again with "
                f"--set 'gates.accept=[{names}]'; the answers are kept. If not, mend the servers "
                f"and run again with --set 'gates.redo=[{names}]'; the chunk is asked for anew.",
            )

    async def _publish(self) -> PartReceipt:
        lost = [key for key in self._conversations if key not in self._rows]
        if lost or self._tally.n_done != len(self._conversations):
            raise AccountingError(
                f"{len(self._conversations)} conversations, {self._tally.n_done} outcomes, "
                f"{len(lost)} without one",
                where=f"chunk {self._chunk.id}",
            )
        path = self._folder / f"{self._journal.name}.part"
        try:
            await asyncio.to_thread(self._write_part, path)
            return await self._ctx.store.run(
                publish_part,
                self._ctx.store,
                data_key(self._chunk.id),
                path,
                self._conversations,
            )
        finally:
            path.unlink(missing_ok=True)

    def _write_part(self, path: Path) -> None:
        """Copy the rows, in the order of the prompts, from where they lie."""
        header = PartHeader(
            plan_sha=self._plan_sha,
            chunk_id=self._chunk.id,
            input_sha256=self._chunk.input_sha256,
        )
        writer = PartWriter(path, header)
        try:
            for key in self._conversations:
                writer.append(self._rows[key].read())
        except BaseException:
            writer.abandon()
            raise
        versions = {**self._replay.servers, **self._ctx.dispatcher.server_versions}
        writer.finish(self._tally.to_footer(versions))

    def _clear_spool(self) -> None:
        """Remove the journals: the store has acknowledged the part, and only it counts now.

        Kept until the manifest they would fill the disk (a whole run's answers), and a part that
        is damaged later gets a revision from the servers, not from here. Journals that another
        process holds are its own.
        """
        for path in (*self._replay.paths, self._journal.path):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # another process has a journal there, or was quicker
            self._folder.rmdir()

    def _tell(self, *, always: bool = False) -> None:
        on_progress = self._ctx.on_progress
        if on_progress is None:
            return
        now = asyncio.get_running_loop().time()
        if not always and now - self._told_at < _PROGRESS_SECONDS:
            return
        self._told_at = now
        tally = self._tally
        on_progress(
            Progress(
                chunk_id=self._chunk.id,
                n_conversations=len(self._conversations),
                n_done=tally.n_done,
                n_failed=tally.statuses["failed"],
                n_replayed=len(self._conversations) - len(self._missing),
                n_output_tokens=tally.n_output_tokens,
                n_in_flight=self._ctx.dispatcher.n_in_flight,
            )
        )
