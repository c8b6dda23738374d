"""What a data part answers, and which of its answers still count.

Enters: a plan, the parts that stand, of chunks and of retries. Leaves: each part with its prompts
and with the conversations that a retry stands in for. It exists because assembly, the export of
conversations and a look at one sample need the same three things together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tasks.completions.record import Outcome
from tasks.errors import CorruptPart
from tasks.prompts.chunk import read_chunk, read_retried
from tasks.prompts.record import Chunk, Plan, Prompt
from tasks.storage.part import iter_rows
from tasks.storage.record import PartReceipt
from tasks.storage.retry import Conversation, RetryPart, Standing, split_retry
from tasks.storage.store import ArtifactStore

_decode_outcome = msgspec.json.Decoder(Outcome).decode


@dataclass(frozen=True, slots=True)
class AnsweredPart:
    """A part that counts, what it answers, and the conversations in it that no longer do."""

    receipt: PartReceipt
    asked: Chunk | RetryPart
    superseded: frozenset[Conversation]


def list_answered(plan: Plan, standing: Standing) -> list[AnsweredPart]:
    """List the parts of chunks, then those of retries, each with what it answers."""
    chunks = {chunk.id: chunk for chunk in plan.chunks}
    shares = {
        (share.retry, share.id): share for retry in standing.lists for share in split_retry(retry)
    }
    replaced = standing.locate_superseded()

    def describe(receipt: PartReceipt) -> AnsweredPart:
        place = receipt.header.retry, receipt.header.chunk_id
        asked = shares[place] if place[0] else chunks[place[1]]
        return AnsweredPart(receipt, asked, frozenset(replaced.get(receipt.key, ())))

    return [describe(receipt) for receipt in standing.all_parts]


def read_asked(
    store: ArtifactStore, plan: Plan, asked: Chunk | RetryPart
) -> dict[Conversation, Prompt]:
    """Read what a part must answer, by (prompt id, sample).

    Raises:
        CorruptPart: The prompts are missing, or not what the plan says.
    """
    if isinstance(asked, Chunk):
        prompts, samples = read_chunk(store, asked), range(plan.n_samples)
        return {(prompt.id, sample): prompt for prompt in prompts for sample in samples}
    return read_retried(store, plan, asked.conversations)


def iter_outcomes(store: ArtifactStore, part: AnsweredPart) -> Iterator[Outcome]:
    """Read the outcomes of a part that still count, streamed.

    Raises:
        CorruptPart: The part is missing or damaged.
    """
    key = part.receipt.key
    if store.head(key) is None:
        raise CorruptPart(
            "the part is damaged: it is missing.",
            where=f"{store.uri}/{key}",
            remedy="Run the same request again: it is made anew.",
        )
    for line in iter_rows(store, key):
        outcome = _decode_outcome(line)
        if (outcome.prompt_id, outcome.sample) not in part.superseded:
            yield outcome
