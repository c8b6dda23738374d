"""Prompts that repeat a benchmark's questions.

Enters: the user's benchmark files, and prompts. Leaves: the name of the benchmark that a prompt
repeats, and how. It exists because public datasets are derived from benchmarks, and a drafter that
has seen the questions is measured too well. A prompt repeats a question if both are the same after
case, punctuation and white space are taken away, or if they share a run of words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tasks.errors import SourceError
from tasks.prompts.config import BenchmarkConfig, ExtractionConfig
from tasks.prompts.files import hash_file, read_file
from tasks.prompts.record import NormalizedRow
from tasks.prompts.row_paths import lookup, nearest_paths
from tasks.prompts.shingles import split_words

# A question of fewer words is held against whole prompts alone.
_FEWEST_RUN_WORDS = 8


class BenchmarkIndex:
    """The questions of all benchmarks, and their runs of words."""

    def __init__(self, questions: Mapping[str, Iterable[str]], n_words: int) -> None:
        """Index questions.

        Args:
            questions: Texts by the benchmark's name; of equal ones the first benchmark counts.
            n_words: Words of a run; a question of 8 or more words but fewer is one run.
        """
        self._exact: dict[int, str] = {}
        self._runs: dict[int, dict[int, str]] = {}
        for name, texts in questions.items():
            for text in texts:
                words = split_words(text)
                if not words:
                    continue
                self._exact.setdefault(_hash(words), name)
                n = min(n_words, len(words))
                if n >= _FEWEST_RUN_WORDS:
                    runs = self._runs.setdefault(n, {})
                    for start in range(len(words) - n + 1):
                        runs.setdefault(_hash(words[start : start + n]), name)

    def find(self, row: NormalizedRow) -> tuple[str, str] | None:
        """Give the benchmark that a user's turn repeats and how (`exact` or `overlap`)."""
        for turn in row.messages:
            if turn["role"] == "user":
                found = self._find_in(split_words(turn["content"]))
                if found is not None:
                    return found
        return None

    def _find_in(self, words: Sequence[str]) -> tuple[str, str] | None:
        name = self._exact.get(_hash(words))
        if name is not None:
            return name, "exact"
        for n, runs in self._runs.items():
            for start in range(len(words) - n + 1):
                name = runs.get(_hash(words[start : start + n]))
                if name is not None:
                    return name, "overlap"
        return None


def load_benchmarks(extraction: ExtractionConfig) -> BenchmarkIndex | None:
    """Read the benchmarks' files; None where there are none.

    Raises:
        SourceError: A file cannot be read, or has no text at the path.
    """
    if not extraction.benchmarks:
        return None
    questions = {
        name: _read_questions(name, config, extraction.max_row_bytes)
        for name, config in extraction.benchmarks.items()
    }
    return BenchmarkIndex(questions, extraction.ngram_words)


def hash_benchmarks(extraction: ExtractionConfig) -> dict[str, str]:
    """Give the sha256 of each benchmark's file.

    Raises:
        SourceError: A file cannot be read.
    """
    return {name: hash_file(Path(config.path)) for name, config in extraction.benchmarks.items()}


def _read_questions(name: str, config: BenchmarkConfig, max_row_bytes: int) -> list[str]:
    rows = list(read_file(Path(config.path), columns=[config.text], max_row_bytes=max_row_bytes))
    texts = [value for row in rows if isinstance(value := lookup(row, config.text), str)]
    if not texts:
        near = ", ".join(nearest_paths(rows[:100], config.text))
        raise SourceError(
            f"no row of the benchmark has a text at {config.text!r}."
            + (f" Nearest in the rows: {near}." if near else ""),
            where=f"extraction.benchmarks.{name} ({config.path})",
            remedy="Set text to the path of the question in a row.",
        )
    return texts


def _hash(words: Sequence[str]) -> int:
    # Within one process only, so that Python's own hash will do; it keeps 8 bytes a run.
    return hash(tuple(words))
