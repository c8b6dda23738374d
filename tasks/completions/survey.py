"""Published parts read again: which of their conversations to ask for anew, and what they count.

Enters: the parts of a run that count. Leaves: the frozen list of a retry, or counts of what a retry
stands in for. It exists because a part, once published, is never changed: what is failed or flagged
in it is found by reading it, and mended beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.quality import GateTally
from tasks.completions.record import Outcome, decode_outcome
from tasks.prompts.record import Plan
from tasks.storage.part import iter_rows
from tasks.storage.record import PartReceipt, RetriedConversation, RetryList, Superseded
from tasks.storage.retry import Conversation, Standing, freeze_retry, sum_superseded
from tasks.storage.store import ArtifactStore

Reason = Literal["failures", "redo"]
Wanted = Callable[[Outcome, Collection[Gate]], bool]


def freeze_failures(
    store: ArtifactStore, plan: Plan, standing: Standing, gates: GatesConfig
) -> RetryList | None:
    """Freeze a retry of every conversation that failed or is partial; None where none is.

    Raises:
        CorruptPart: A part is not what its receipt says.
    """

    def has_lost(counts: Mapping[str, int]) -> bool:
        return counts["n_failed"] + counts["n_partial"] > 0

    def is_lost(outcome: Outcome, _: Collection[Gate]) -> bool:
        return outcome.failure is not None

    return _freeze(store, plan, standing, gates, "failures", has_lost, is_lost)


def freeze_flagged(
    store: ArtifactStore, plan: Plan, standing: Standing, gates: GatesConfig
) -> RetryList | None:
    """Freeze a retry of every conversation that a gate of `gates.redo` flags; None where none is.

    Raises:
        CorruptPart: A part is not what its receipt says.
    """
    redo = frozenset(gates.redo)

    def has_flagged(counts: Mapping[str, int]) -> bool:
        return any(counts[gate] > 0 for gate in redo)

    def is_flagged(_: Outcome, flags: Collection[Gate]) -> bool:
        return not redo.isdisjoint(flags)

    return _freeze(store, plan, standing, gates, "redo", has_flagged, is_flagged)


def count_superseded(
    store: ArtifactStore, plan: Plan, standing: Standing, gates: GatesConfig
) -> dict[str, Superseded]:
    """Count what of each part no longer counts, by the part's key.

    The retries' lists say it already, unless a part was damaged and made anew since.

    Raises:
        CorruptPart: A part is not what its receipt says.
    """
    superseded: dict[str, Superseded] = {}
    receipts = {part.key: part for part in standing.all_parts}
    for key, entries in standing.locate_superseded().items():
        if all(entry.part_sha256 == receipts[key].sha256 for entry in entries.values()):
            superseded[key] = sum_superseded(entries.values())
            continue
        chunk_ids = {conversation: entry.chunk_id for conversation, entry in entries.items()}
        rows = _survey(store, plan, receipts[key], gates, chunk_ids, lambda *_: True)
        superseded[key] = sum_superseded(rows)
    return superseded


def read_outcomes(
    store: ArtifactStore, key: str, wanted: Collection[Conversation]
) -> dict[Conversation, Outcome]:
    """Read the outcomes of some conversations of a part.

    Raises:
        CorruptPart: The part is damaged.
    """
    outcomes = map(decode_outcome, iter_rows(store, key))
    return {
        (outcome.prompt_id, outcome.sample): outcome
        for outcome in outcomes
        if (outcome.prompt_id, outcome.sample) in wanted
    }


def _freeze(  # noqa: PLR0917
    store: ArtifactStore,
    plan: Plan,
    standing: Standing,
    gates: GatesConfig,
    reason: Reason,
    may_hold: Callable[[Mapping[str, int]], bool],
    wanted: Wanted,
) -> RetryList | None:
    """Look into every part whose footer says that it may hold a conversation that is wanted."""
    superseded = standing.locate_superseded()
    gone = count_superseded(store, plan, standing, gates)
    places = standing.locate_conversations()
    found: list[RetriedConversation] = []
    for part in standing.all_parts:
        if not may_hold(_count_standing(part, gone.get(part.key, Superseded()))):
            continue
        left = superseded.get(part.key, {})
        chunk_ids = places[part.key] if part.header.retry else part.header.chunk_id
        found += (
            row
            for row in _survey(store, plan, part, gates, chunk_ids, wanted)
            if (row.prompt_id, row.sample) not in left
        )
    if not found:
        return None
    found.sort(key=lambda row: row.chunk_id)
    return freeze_retry(
        store,
        RetryList(
            retry=len(standing.lists) + 1,
            plan_sha=plan.sha,
            reason=reason,
            gates=tuple(sorted(gates.redo)) if reason == "redo" else (),
            conversations=tuple(found),
        ),
    )


def _count_standing(part: PartReceipt, gone: Superseded) -> dict[str, int]:
    footer = part.footer
    counts = {gate: n - gone.gates.get(gate, 0) for gate, n in footer.gates.items()}
    counts["n_failed"] = footer.n_failed - gone.n_failed
    counts["n_partial"] = footer.n_partial - gone.n_partial
    return counts


def _survey(  # noqa: PLR0917
    store: ArtifactStore,
    plan: Plan,
    part: PartReceipt,
    gates: GatesConfig,
    chunk_ids: int | Mapping[Conversation, int],
    wanted: Wanted,
) -> Iterator[RetriedConversation]:
    """Describe the conversations of a part that are wanted.

    `chunk_ids` is the part's chunk, or names the conversations to look at with the chunk of each.
    """
    tally = GateTally(gates, thinking=plan.thinking)
    for outcome in map(decode_outcome, iter_rows(store, part.key)):
        flags = tally.add(outcome)
        conversation = (outcome.prompt_id, outcome.sample)
        chunk_id = chunk_ids if isinstance(chunk_ids, int) else chunk_ids.get(conversation)
        if chunk_id is None or not wanted(outcome, flags):
            continue
        usages = [completion.usage for completion in outcome.completions]
        yield RetriedConversation(
            prompt_id=outcome.prompt_id,
            sample=outcome.sample,
            chunk_id=chunk_id,
            part_key=part.key,
            part_sha256=part.sha256,
            status=outcome.status,
            failure=None if outcome.failure is None else outcome.failure.kind,
            flags=tuple(sorted(flags)),
            n_generations=len(usages),
            n_prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            n_output_tokens=sum(usage.completion_tokens for usage in usages),
        )
