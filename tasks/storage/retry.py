"""Retries: conversations asked for anew, frozen before the first request, beside what they replace.

Enters: the conversations to ask for anew, or the lists and parts that stand in the store. Leaves:
`_run/retry-NN.json`, created once, its parts, and which rows of which part no longer count. It
exists so that failed or bad answers are mended without changing what was there: a retry's outcome
supersedes the earlier one of the same conversation, and a later retry wins over an earlier one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import CorruptPart, KeyTaken
from tasks.storage.layout import parse_retry_key, retry_key, retry_prefix
from tasks.storage.part import find_part
from tasks.storage.record import PartReceipt, RetriedConversation, RetryList, Superseded
from tasks.storage.request import hash_json
from tasks.storage.store import ArtifactStore

CONVERSATIONS_A_PART = 1000

Conversation = tuple[str, int]
"""(prompt id, sample)."""


class RetryPart(BaseModel):
    """The share of a retry that becomes one part; `id` is its index, as a chunk's is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    retry: int
    id: int
    reason: Literal["failures", "redo"]
    gates: tuple[str, ...]
    conversations: tuple[RetriedConversation, ...]

    @property
    def input_sha256(self) -> str:
        """Hash of what the part must answer."""
        asked = [[c.prompt_id, c.sample] for c in self.conversations]
        return hash_json(["retry", self.retry, self.id, asked])


@dataclass(frozen=True, slots=True)
class Standing:
    """The parts that count: one a chunk, one a share of each retry, and the retries' lists."""

    parts: tuple[PartReceipt, ...]
    retries: tuple[PartReceipt, ...]
    lists: tuple[RetryList, ...]

    @property
    def all_parts(self) -> tuple[PartReceipt, ...]:
        """Every part, those of retries last and in order."""
        return (*self.parts, *self.retries)

    def locate_superseded(self) -> dict[str, dict[Conversation, RetriedConversation]]:
        """Tell which conversations of which part a retry stands in for.

        Returns:
            Key of a part to its superseded conversations, each with its entry in a retry's list.

        Raises:
            KeyError: A chunk or a share of a retry has no part here.
        """
        by_chunk = {part.header.chunk_id: part.key for part in self.parts}
        newest: dict[Conversation, str] = {}
        found: dict[str, dict[Conversation, RetriedConversation]] = {}
        for key, share in self._list_shares():
            for entry in share.conversations:
                conversation = (entry.prompt_id, entry.sample)
                before = newest.get(conversation, by_chunk[entry.chunk_id])
                found.setdefault(before, {})[conversation] = entry
                newest[conversation] = key
        return found

    def sum_retried(self) -> dict[str, Superseded]:
        """Add up what of each part no longer counts, by its key, as far as there are parts.

        For a run that still lacks some; what the lists say of a part made anew since is left out.
        """
        parts = {(part.header.retry, part.header.chunk_id): part for part in self.all_parts}
        newest: dict[Conversation, PartReceipt] = {}
        gone: dict[str, list[RetriedConversation]] = {}
        for retry in self.lists:
            for share in split_retry(retry):
                answered = parts.get((share.retry, share.id))
                if answered is None:
                    continue
                for entry in share.conversations:
                    conversation = (entry.prompt_id, entry.sample)
                    before = newest.get(conversation, parts.get((0, entry.chunk_id)))
                    if before is not None and before.sha256 == entry.part_sha256:
                        gone.setdefault(before.key, []).append(entry)
                    newest[conversation] = answered
        return {key: sum_superseded(entries) for key, entries in gone.items()}

    def locate_conversations(self) -> dict[str, dict[Conversation, int]]:
        """Tell which conversations the retries' parts hold, by key, with the chunk of each."""
        return {
            key: {(entry.prompt_id, entry.sample): entry.chunk_id for entry in share.conversations}
            for key, share in self._list_shares()
        }

    def list_open(self) -> list[RetryPart]:
        """List the shares of retries that have no part yet, in order."""
        there = {(part.header.retry, part.header.chunk_id) for part in self.retries}
        shares = [share for retry in self.lists for share in split_retry(retry)]
        return [share for share in shares if (share.retry, share.id) not in there]

    def _list_shares(self) -> Iterator[tuple[str, RetryPart]]:
        keys = {(part.header.retry, part.header.chunk_id): part.key for part in self.retries}
        for retry in self.lists:
            for share in split_retry(retry):
                yield keys[share.retry, share.id], share


def freeze_retry(store: ArtifactStore, wanted: RetryList) -> RetryList:
    """Freeze a retry's list, or take the one that another run froze under its number before.

    Raises:
        CorruptPart: What stands there is no list.
    """
    key = retry_key(wanted.retry)
    try:
        store.create(key, wanted.model_dump_json(indent=1).encode() + b"\n")
    except KeyTaken:
        return _read(store, key, wanted.plan_sha)
    return wanted


def read_retries(store: ArtifactStore, plan_sha: str) -> list[RetryList]:
    """Read the lists of all retries, in order.

    Raises:
        CorruptPart: One of them is damaged, or one is missing before a later one.
    """
    lists = [_read(store, key, plan_sha) for key in _list_keys(store)]
    for number, retry in enumerate(lists, start=1):
        if retry.retry != number:
            raise _damaged(store, retry_key(number), "it is missing, and a later retry is there")
    return lists


def hash_retries(store: ArtifactStore, n_retries: int) -> dict[str, str]:
    """Give the sha256 of the first retries' lists by key; one that is missing is left out."""
    keys = _list_keys(store)[:n_retries]
    return {key: hashlib.sha256(store.get(key)).hexdigest() for key in keys}


def split_retry(retry: RetryList) -> list[RetryPart]:
    """Cut a retry into its parts, in order."""
    asked = retry.conversations
    starts = range(0, len(asked), CONVERSATIONS_A_PART)
    return [
        RetryPart(
            retry=retry.retry,
            id=index,
            reason=retry.reason,
            gates=retry.gates,
            conversations=asked[start : start + CONVERSATIONS_A_PART],
        )
        for index, start in enumerate(starts)
    ]


def find_retry_part(store: ArtifactStore, plan_sha: str, part: RetryPart) -> PartReceipt | None:
    """Find the highest valid revision of a retry's part; None if there is none.

    Raises:
        KeyTaken: The part there answers another plan or list.
    """
    return find_part(store, part.id, plan_sha, part.input_sha256, retry=part.retry)


def sum_superseded(entries: Iterable[RetriedConversation]) -> Superseded:
    """Add up what superseded outcomes brought into their part's footer."""
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    gates: Counter[str] = Counter()
    for entry in entries:
        counts["n_rows"] += 1
        counts[f"n_{entry.status}"] += 1
        counts["n_generations"] += entry.n_generations
        counts["n_prompt_tokens"] += entry.n_prompt_tokens
        counts["n_output_tokens"] += entry.n_output_tokens
        gates.update(entry.flags)
        if entry.failure is not None:
            failures[entry.failure] += 1
    return Superseded(**counts, failures=dict(failures), gates=dict(gates))


def sum_standing(
    parts: Iterable[PartReceipt], superseded: Mapping[str, Superseded]
) -> Counter[str]:
    """Add up the counts of all parts' footers, without what no longer counts."""
    total: Counter[str] = Counter()
    for part in parts:
        gone = superseded.get(part.key, Superseded())
        for name, count in gone.model_dump(exclude={"failures", "gates"}).items():
            total[name] += getattr(part.footer, name) - count
    return total


def _list_keys(store: ArtifactStore) -> list[str]:
    keys = {parse_retry_key(stat.key): stat.key for stat in store.list(retry_prefix())}
    return [key for _, key in sorted((n, key) for n, key in keys.items() if n is not None)]


def _read(store: ArtifactStore, key: str, plan_sha: str) -> RetryList:
    try:
        retry = RetryList.model_validate_json(store.get(key))
    except ValidationError as error:
        raise _damaged(store, key, f"{error.error_count()} faults") from error
    if (retry.retry, retry.plan_sha) != (parse_retry_key(key), plan_sha):
        raise _damaged(store, key, "it is of another plan or number")
    return retry


def _damaged(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the list of a retry is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Restore the object from a copy; the manifest holds its sha256.",
    )
