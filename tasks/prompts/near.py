"""Near-duplicates: MinHash proposes, the exact Jaccard similarity of word 3-grams decides.

Enters: texts in the run's order. Leaves: which of them survive. A text falls if an earlier survivor
is as similar as the threshold says, so that what survives depends on the order of the run alone and
not on the order of rows. In memory stays a row of band hashes for each text, not the text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from tasks.prompts.record import Message
from tasks.prompts.shingles import WordHashes, hash_runs, list_runs, split_on_space

N_WORDS = 3
N_PERMUTATIONS = 128
_SEED = 1
_HASHED_AT_ONCE = 1_000
# Of the pairs at the threshold itself, the share that MinHash must propose.
_MIN_RECALL = 0.99
# A text is held against so many survivors of each of its bands: a crowd of look-alikes that are
# no duplicates costs a bounded time.
_MOST_COMPARED = 16
# Words of texts that are remembered: some 200 bytes each.
_MOST_REMEMBERED = 500_000

Bands = npt.NDArray[np.uint32]


class NearIndex:
    """The texts so far, as bands; grows block by block."""

    def __init__(self, threshold: float, read_text: Callable[[int], str]) -> None:
        """Begin without a text.

        Args:
            threshold: Lowest similarity that `extend` will be asked for.
            read_text: Gives the text of an index again; called for proposed pairs alone.
        """
        self._rows = choose_rows(threshold)
        self._bands: Bands = np.zeros((0, N_PERMUTATIONS // self._rows), dtype=np.uint32)
        self._survives: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._read_text = read_text
        self._runs: OrderedDict[int, set[tuple[str, ...]]] = OrderedDict()
        self._n_remembered = 0
        self._hashes = WordHashes()

    def extend(self, texts: Iterable[str], threshold: float) -> npt.NDArray[np.bool_]:
        """Add texts, numbered on from the last one; gives which of them survive.

        Args:
            texts: In the run's order.
            threshold: From which similarity with an earlier survivor a text falls.
        """
        first = len(self._survives)
        blocks = [self._bands, *self._hash_bands(texts)]
        self._bands = np.concatenate(blocks)
        n_all = len(self._bands)
        self._survives = np.concatenate([self._survives, np.ones(n_all - first, dtype=np.bool_)])
        groups = self._group(first)
        for index in sorted(groups):
            if index >= first and self._has_twin(index, groups[index], threshold):
                self._survives[index] = False
            elif self._survives[index]:
                for survivors in groups[index]:
                    if len(survivors) < _MOST_COMPARED:
                        survivors.append(index)
        return self._survives[first:]

    def _hash_bands(self, texts: Iterable[str]) -> Iterator[Bands]:
        stream = iter(texts)
        while block := [split_on_space(text) for text in islice(stream, _HASHED_AT_ONCE)]:
            hashes, ends = hash_runs(block, self._hashes)
            matrix = RMinHash.digest_matrix_from_flat_token_hashes(
                hashes, ends, N_PERMUTATIONS, _SEED
            )
            flat = chain.from_iterable(matrix.to_rows())
            signatures = np.fromiter(flat, np.uint64, count=len(block) * N_PERMUTATIONS)
            yield _fold(signatures.reshape(len(block), N_PERMUTATIONS), self._rows)

    def _group(self, first: int) -> dict[int, list[list[int]]]:
        """Find texts that share a band with one of the new; gives each its (shared) lists."""
        groups: dict[int, list[list[int]]] = {}
        for band in range(self._bands.shape[1]):
            column = self._bands[:, band]
            order = np.argsort(column, kind="stable")
            ordered = column[order]
            is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
            starts = np.flatnonzero(is_first)
            ends = np.append(starts[1:], len(ordered))
            for at in np.flatnonzero(ends - starts > 1):
                members = order[starts[at] : ends[at]]
                if members[-1] < first:
                    continue
                survivors: list[int] = []
                for member in members.tolist():
                    groups.setdefault(member, []).append(survivors)
        return groups

    def _has_twin(self, index: int, groups: list[list[int]], threshold: float) -> bool:
        compared: set[int] = set()
        runs: set[tuple[str, ...]] | None = None
        for survivors in groups:
            for other in survivors:
                if other in compared:
                    continue
                compared.add(other)
                runs = self._read_runs(index) if runs is None else runs
                if measure_jaccard(runs, self._read_runs(other)) >= threshold:
                    return True
        return False

    def _read_runs(self, index: int) -> set[tuple[str, ...]]:
        runs = self._runs.get(index)
        if runs is None:
            runs = self._runs[index] = list_runs(split_on_space(self._read_text(index)), N_WORDS)
            self._n_remembered += len(runs)
            while self._n_remembered > _MOST_REMEMBERED and len(self._runs) > 1:
                self._n_remembered -= len(self._runs.popitem(last=False)[1])
        return runs


def choose_rows(threshold: float) -> int:
    """Choose how many permutations make a band: the most that propose 99% of true pairs."""
    for rows in range(16, 1, -1):
        if 1 - (1 - threshold**rows) ** (N_PERMUTATIONS // rows) >= _MIN_RECALL:
            return rows
    return 1


def measure_jaccard(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    """Measure the similarity of two sets of runs; texts without a word are like no other."""
    n_shared = len(one & other)
    n_all = len(one) + len(other) - n_shared
    return n_shared / n_all if n_all else 0.0


def join_user_turns(messages: list[Message]) -> str:
    """Give what near-duplicates are told by: the users' turns, for system texts repeat."""
    return "\n".join(turn["content"] for turn in messages if turn["role"] == "user")


def _fold(signatures: npt.NDArray[np.uint64], rows: int) -> Bands:
    n_bands = N_PERMUTATIONS // rows
    grouped = signatures[:, : n_bands * rows].reshape(len(signatures), n_bands, rows)
    mixed = np.zeros((len(signatures), n_bands), dtype=np.uint64)
    for row in range(rows):
        mixed = (mixed ^ grouped[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(32)).astype(np.uint32)
