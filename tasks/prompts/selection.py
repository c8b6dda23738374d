"""Which extracted prompts a run answers: one of each, in the shares of the mix.

Enters: the receipts of extraction. Leaves: the prompts in the run's order, without duplicates
across sources, near ones included, and within the caps of the mix. It exists as passes over ids and
domains before the pass over whole records, so that memory holds a part a source.

A near-duplicate is held against the prompts of earlier sources first: as with exact ones, the first
source of the configuration keeps a prompt.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tasks.errors import CorruptPart
from tasks.prompts.candidates import Texts
from tasks.prompts.config import MixConfig
from tasks.prompts.dedupe import SeenPrompts, merge_sources
from tasks.prompts.near import NearIndex, join_user_turns
from tasks.prompts.prompt_file import PROMPT_SCHEMA, Columns, encode_record, iter_records
from tasks.prompts.record import ExtractReceipt, MixSolution
from tasks.prompts.shares import Cell, solve_mix
from tasks.storage.store import ArtifactStore

_ANEW = "Nothing is overwritten here: start the run anew at another store.uri."


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asks of the selection.

    Attributes:
        near: By source, from which similarity a prompt is a near-duplicate; None: never.
        mix: Target shares, or None.
        base_rows: Rows of the base dataset by domain.
        base_tokens: Its supervised tokens by domain.
    """

    near: Mapping[str, float | None] = field(default_factory=dict)
    mix: MixConfig | None = None
    base_rows: Mapping[str, int] = field(default_factory=dict)
    base_tokens: Mapping[str, int] = field(default_factory=dict)


class Selection:
    """The prompts that a run answers, found once and read in order.

    Attributes:
        n_taken: Prompts taken of each source.
        n_duplicates: Dropped as duplicates across sources, near ones included.
        n_near_duplicates: Of these, the near ones.
        n_outside_mix: Left out by the mix.
        mix: How the mix was solved, or None.
    """

    def __init__(
        self,
        store: ArtifactStore,
        receipts: Sequence[ExtractReceipt],
        seed: int,
        wishes: Wishes,
        folder: Path,
    ) -> None:
        """Read ids, domains and, where near-duplicates are looked for, texts.

        Args:
            store: Holds the extracted parts.
            receipts: One a source, in the configuration's order.
            seed: Seed of the order.
            wishes: What the user asks for.
            folder: Local folder for the texts.
        """
        self._store = store
        self._receipts = receipts
        self._seed = seed
        self._near = _find_near(store, receipts, wishes.near, folder / "texts")
        cells: Counter[tuple[int, str]] = Counter()
        n_all = 0
        for index, record, survives in self._merge(["id", "domain"]):
            n_all += 1
            cells[index, record["domain"]] += survives
        names = [receipt.source for receipt in receipts]
        available: dict[Cell, int] = {
            (names[index], domain): n for (index, domain), n in sorted(cells.items()) if n
        }
        self.mix: MixSolution | None = None
        self._caps = available
        if wishes.mix is not None:
            self.mix = solve_mix(wishes.mix, available, wishes.base_rows, wishes.base_tokens)
            self._caps = {(cap.source, cap.domain): cap.n_taken for cap in self.mix.caps}
        n_by_source: Counter[str] = Counter()
        for (source, _), n in self._caps.items():
            n_by_source[source] += n
        self.n_taken = [n_by_source[name] for name in names]
        self.n_near_duplicates = len(self._near)
        self.n_duplicates = n_all - sum(available.values())
        self.n_outside_mix = sum(available.values()) - sum(self.n_taken)

    def iter_taken(self) -> Iterator[tuple[int, Columns]]:
        """Read the taken prompts in the run's order, each with the index of its source.

        Raises:
            CorruptPart: Extracted prompts are not what their receipt says.
        """
        left = dict(self._caps)
        for index, record, survives in self._merge(None):
            cell = (self._receipts[index].source, record["domain"])
            # Of each source and domain the first in the order: a prompt keeps its place there
            # whatever is added behind it.
            if survives and left[cell]:
                left[cell] -= 1
                yield index, record

    def _merge(self, columns: Sequence[str] | None) -> Iterator[tuple[int, Columns, bool]]:
        streams = [_iter_extracted(self._store, receipt, columns) for receipt in self._receipts]
        for index, prompt_id, record, survives in merge_sources(streams, self._seed):
            yield index, record, survives and bytes.fromhex(prompt_id) not in self._near


def _find_near(
    store: ArtifactStore,
    receipts: Sequence[ExtractReceipt],
    near: Mapping[str, float | None],
    path: Path,
) -> set[bytes]:
    """Find the survivors of exact duplication that are near-duplicates across sources."""
    asked = [one for receipt in receipts if (one := near.get(receipt.source)) is not None]
    if len(asked) < 2:
        return set()  # within one source extraction has dropped them
    met = SeenPrompts()
    dropped: set[bytes] = set()
    with Texts(path) as texts:
        index = NearIndex(min(asked), texts.read)
        for receipt in receipts:
            threshold = near.get(receipt.source)
            ids: list[str] = []

            def read_new(receipt: ExtractReceipt, ids: list[str]) -> Iterator[str]:
                for prompt_id, record in _iter_extracted(store, receipt, ["id", "messages"]):
                    if met.add(prompt_id):
                        ids.append(prompt_id)
                        text = join_user_turns(orjson.loads(record["messages"]))
                        texts.append(text)
                        yield text

            if threshold is None:
                for prompt_id, _ in _iter_extracted(store, receipt, ["id"]):
                    met.add(prompt_id)
                continue
            survives = index.extend(read_new(receipt, ids), threshold)
            dropped.update(
                bytes.fromhex(one) for one, stays in zip(ids, survives, strict=True) if not stays
            )
    return dropped


def _iter_extracted(
    store: ArtifactStore, receipt: ExtractReceipt, columns: Sequence[str] | None
) -> Iterator[tuple[str, Columns]]:
    """Stream a source's prompts in the run's order, checked against the receipt at the end."""
    digest = hashlib.sha256()
    n_prompts = 0
    for key in receipt.part_keys:
        try:
            for record in iter_records(store.get(key), columns or PROMPT_SCHEMA.names):
                n_prompts += 1
                if columns is None:
                    digest.update(encode_record(record))
                yield record["id"], record
        except (OSError, ValueError) as error:
            raise _corrupt(key, type(error).__name__) from error
    if n_prompts != receipt.n_prompts or (columns is None and digest.hexdigest() != receipt.sha256):
        raise _corrupt(f"extracted prompts of {receipt.source}", "another hash or number")


def _corrupt(key: str, reason: str) -> CorruptPart:
    return CorruptPart(
        f"the prompts there are not what was recorded ({reason}).", where=key, remedy=_ANEW
    )
