"""The answers of published parts, counted for the report in one pass over the store.

Enters: the parts of a run that count. Leaves: GenerationFigures. Texts and ids are skipped
unparsed, and nothing of a row is kept but who made one that a retry has replaced: memory is flat,
and the pass costs what reading the parts costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from tasks.completions.record import Usage
from tasks.report.generation import GenerationCounter
from tasks.report.record import GenerationFigures
from tasks.storage.part import iter_rows
from tasks.storage.record import PartReceipt
from tasks.storage.retry import Conversation
from tasks.storage.store import ArtifactStore


class _Answer(msgspec.Struct):
    """What of a Completion is counted."""

    usage: Usage
    endpoint: str
    latency_seconds: float
    ended_at: float = 0.0
    retried: list[str] = []


class _Failure(msgspec.Struct):
    """What of a Failure is told."""

    kind: str
    message: str
    attempts: int


class _Row(msgspec.Struct):
    """What of an Outcome is read."""

    prompt_id: str
    sample: int
    completions: list[_Answer]
    failure: _Failure | None
    attempt: str


_decode = msgspec.json.Decoder(_Row).decode


def measure_generation(
    store: ArtifactStore,
    parts: Iterable[PartReceipt],
    superseded: Mapping[str, Collection[Conversation]],
) -> GenerationFigures:
    """Read every part once and say what its answers took.

    Args:
        store: The run's store.
        parts: Of chunks, then of retries in order.
        superseded: Key of a part to its conversations that a retry stands in for: their answers
            were paid for and count, once where the retry came off worse and holds them again;
            their failures have been mended and are not told.

    Raises:
        CorruptPart: A part is not what it was.
        FileNotFoundError: A part is missing.
    """
    counter = GenerationCounter()
    versions: dict[str, str] = {}
    slots: dict[str, int] = {}
    replaced: dict[Conversation, str] = {}
    for part in parts:
        versions |= part.footer.server_versions
        slots |= part.footer.server_slots
        mended = superseded.get(part.key, ())
        for row in map(_decode, iter_rows(store, part.key)):
            conversation = (row.prompt_id, row.sample)
            is_copy = replaced.get(conversation) == row.attempt
            if conversation in mended:
                replaced[conversation] = row.attempt
            for answer in () if is_copy else row.completions:
                counter.add_answer(
                    answer.endpoint,
                    prompt_tokens=answer.usage.prompt_tokens,
                    output_tokens=answer.usage.completion_tokens,
                    reasoning_tokens=answer.usage.reasoning_tokens,
                    latency_seconds=answer.latency_seconds,
                    ended_at=answer.ended_at,
                    retried=answer.retried,
                )
            failure = row.failure
            if failure is not None and conversation not in mended:
                name = f"{row.prompt_id}#s{row.sample}"
                counter.add_failure(name, failure.kind, failure.message, failure.attempts)
    return counter.freeze(versions, slots)
