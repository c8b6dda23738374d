"""Texts as words and runs of words, for near-duplicates and benchmarks; pure.

Enters: texts. Leaves: their words, sets of runs, and 64-bit hashes of runs, the same on every
machine. A script without spaces counts each character as a word. The hashes only propose: what they
propose is decided on the words themselves.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_SPACELESS = r"\u3040-\u30ff\u3400-\u9fff"  # kana and Han
_SPACED = re.compile(rf"[{_SPACELESS}]|[^\s{_SPACELESS}]+")
_WORDS = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+")
_ASCII_WORDS = str.maketrans({chr(code): " " for code in range(128) if not chr(code).isalnum()})
_MOST_HASHED_WORDS = 400_000
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)


def split_words(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation."""
    if text.isascii():
        return text.lower().translate(_ASCII_WORDS).split()
    return _WORDS.findall(text.lower())


def split_on_space(text: str) -> list[str]:
    """Split a text into lower-case words with their punctuation: `2+3` is not `2-3`."""
    return text.lower().split() if text.isascii() else _SPACED.findall(text.lower())


def list_runs(words: Sequence[str], n_words: int) -> set[tuple[str, ...]]:
    """Give the set of runs of `n_words`; a shorter text is one run of all its words."""
    if len(words) <= n_words:
        return {tuple(words)} if words else set()
    return set(zip(*(words[start:] for start in range(n_words)), strict=False))


class WordHashes(dict[str, int]):
    """64-bit hashes of words, remembered while they are few."""

    def __missing__(self, word: str) -> int:
        if len(self) >= _MOST_HASHED_WORDS:
            self.clear()
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        value = self[word] = int.from_bytes(digest, "little")
        return value


def hash_runs(texts: Sequence[Sequence[str]], hashes: WordHashes) -> tuple[U64, U64]:
    """Hash the word 3-grams of many texts at once.

    Args:
        texts: Words of each text.
        hashes: Remembered hashes of words.

    Returns:
        The hashes of all runs, shape [n_runs], and where each text's runs begin and end, shape
        [n_texts + 1]. A text of fewer than three words has one run, an empty one none.
    """
    n_words = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    words = chain.from_iterable(texts)
    flat = np.fromiter(map(hashes.__getitem__, words), dtype=np.uint64, count=n_words.sum())
    n_runs = np.where(n_words == 0, 0, np.maximum(n_words - 2, 1))
    ends = np.concatenate(([0], np.cumsum(n_runs)))
    # Two blanks after each text keep its runs out of the next one.
    padded = np.zeros(len(flat) + 2, dtype=np.uint64)
    padded[: len(flat)] = flat
    starts = np.repeat(np.cumsum(n_words) - n_words, n_runs)
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], n_runs)
    places = starts + within
    left = np.repeat(n_words, n_runs) - within
    with np.errstate(over="ignore"):
        mixed = padded[places] * np.uint64(_MULTIPLIERS[0])
        mixed += np.where(left > 1, padded[places + 1], 0) * np.uint64(_MULTIPLIERS[1])
        mixed += np.where(left > 2, padded[places + 2], 0) * np.uint64(_MULTIPLIERS[2])
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_MULTIPLIERS[0])
        mixed ^= mixed >> np.uint64(32)
    return mixed, ends.astype(np.uint64)
