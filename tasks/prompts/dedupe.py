"""Exact duplicates, within a source and across sources.

Enters: prompt ids. Leaves: which of them come for the first time, and one stream of prompts in
which each id stands once. It exists so that no prompt is answered twice. The survivor of an id is
the earliest row of the first source in the configuration's order, so the set of ids that survive
does not depend on the order of rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from tasks.prompts.mix import order_key

T = TypeVar("T")


class SeenPrompts:
    """The ids met so far in one source; 16 bytes each and the set's own cost."""

    def __init__(self) -> None:
        self._seen: set[bytes] = set()

    def add(self, prompt_id: str) -> bool:
        """Take an id in; says whether it is new."""
        before = len(self._seen)
        self._seen.add(bytes.fromhex(prompt_id))
        return len(self._seen) > before


def merge_sources(
    streams: Sequence[Iterable[tuple[str, T]]], seed: int
) -> Iterator[tuple[int, str, T, bool]]:
    """Merge the sources' prompts into the run's order, telling duplicates from survivors.

    Args:
        streams: For each source, in the configuration's order, (prompt id, anything) by
            `order_key`, each id once.
        seed: Seed of the order.

    Yields:
        (index of the source, prompt id, what came with it, whether it survives). Equal ids are
        neighbours in this order, so nothing but the last one is held.
    """
    keyed = [_add_keys(index, stream, seed) for index, stream in enumerate(streams)]
    previous = ""
    for _, index, prompt_id, value in heapq.merge(*keyed, key=lambda entry: entry[:2]):
        yield index, prompt_id, value, prompt_id != previous
        previous = prompt_id


def _add_keys(
    index: int, stream: Iterable[tuple[str, T]], seed: int
) -> Iterator[tuple[bytes, int, str, T]]:
    for prompt_id, value in stream:
        yield order_key(seed, prompt_id), index, prompt_id, value
