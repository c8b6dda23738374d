"""The language of a text, where its row has no label of its own.

Enters: texts. Leaves: for each an ISO 639-1 code, or None where there is too little of it to tell.
It exists because labels are missing or wrong in many datasets; the model is py3langid's, read once.

The model is naive Bayes over features that an automaton finds in a text's bytes. Many texts take
each step of it at once: a sixth of what one after the other costs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

# The model's walk goes byte by byte: the first sentences tell as much as the whole text does.
_MOST_CHARS = 120
_FEWEST_LETTERS = 24
_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def identify_languages(texts: Sequence[str]) -> list[str | None]:
    """Tell the language of each text; None where it has too few letters outside of code blocks.

    What a text is told to be does not depend on the texts beside it.
    """
    told: list[str | None] = [None] * len(texts)
    heads = {place: head for place, text in enumerate(texts) if (head := _take_head(text))}
    if heads:
        for place, code in zip(heads, _load_model().classify(list(heads.values())), strict=True):
            told[place] = code
    return told


def _take_head(text: str) -> str:
    """Give the beginning that tells the language; empty where it cannot."""
    if "```" in text:
        text = _CODE_BLOCK.sub(" ", text)
    text = text[:_MOST_CHARS]
    # Six characters of another script say as much as a word.
    fewest = _FEWEST_LETTERS if text.isascii() else _FEWEST_LETTERS // 4
    return text if sum(map(str.isalpha, text)) >= fewest else ""


class _Model:
    """py3langid's model; `classify` gives what its own method of that name gives, text for text."""

    def __init__(self) -> None:
        # Late: the model takes a second that sources with labels need not spend.
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

        model = LanguageIdentifier.from_model_file(MODEL_FILE)
        self._codes = list(model.nb_classes)
        # Half precision, in which the table is stored, would be widened each time.
        self._table = np.asarray(model.nb_ptc, np.float32)
        self._prior = np.asarray(model.nb_pc, np.float32)
        self._next_states = np.asarray(model.tk_nextmove)
        self._row_starts = np.array(model.tk_row, np.intp) << 8
        self._features = np.array(model.tk_output, np.int32)

    def classify(self, texts: Sequence[str]) -> list[str]:
        """Tell the languages of texts of which none is empty."""
        encoded = [_encode(text) for text in texts]
        n_bytes = np.array([len(data) for data in encoded])
        # The longest first: those that still go on stand together.
        order = np.argsort(-n_bytes, kind="stable")
        found = self._walk([encoded[place] for place in order], n_bytes[order])
        codes = [""] * len(texts)
        for place, best in zip(order, self._score(found).argmax(axis=1), strict=True):
            codes[place] = self._codes[best]
        return codes

    def _walk(
        self, encoded: Sequence[bytes], n_bytes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """Give the feature met at each byte, or -1; shape [n_texts, n_bytes of the longest]."""
        longest = int(n_bytes[0])
        padded = b"".join([data.ljust(longest, b"\0") for data in encoded])
        by_step = np.frombuffer(padded, np.uint8).reshape(-1, longest).T.astype(np.intp, order="C")
        n_left = np.searchsorted(-n_bytes, -np.arange(longest)).tolist()
        found = np.full(by_step.shape, -1, np.int32)
        states = np.zeros(len(encoded), self._next_states.dtype)
        for step, n in enumerate(n_left):
            states = self._next_states[self._row_starts[states[:n]] + by_step[step, :n]]
            found[step, :n] = self._features[states]
        return found.T

    def _score(self, found: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """Add up the rows of the features found; shape [n_texts, n_languages]."""
        n_texts, n_features = len(found), len(self._table)
        texts, places = np.nonzero(found >= 0)
        keys, counts = np.unique(texts * n_features + found[texts, places], return_counts=True)
        texts, features = np.divmod(keys, n_features)
        weights = np.log1p(counts.astype(np.float32))
        ends = np.searchsorted(texts, np.arange(n_texts + 1)).tolist()
        scores = np.zeros((n_texts, len(self._codes)), np.float32)
        for text in range(n_texts):
            start, end = ends[text : text + 2]
            if start < end:
                rows = self._table.take(features[start:end], axis=0)
                # A matrix product of this size wakes the threads of the linear algebra library,
                # which then spin.
                scores[text] = np.einsum("i,ij->j", weights[start:end], rows) + self._prior
        return scores


def _encode(text: str) -> bytes:
    """Write a text as the model was trained on it."""
    text = text.lower() if text.isupper() else text
    return unicodedata.normalize("NFC", text).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=1)
def _load_model() -> _Model:
    return _Model()
