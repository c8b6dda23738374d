"""The language of a text, where its row has no label of its own.

Enters: a text. Leaves: an ISO 639-1 code, or None where there is too little of it to tell. It
exists because labels are missing or wrong in many datasets; the model is py3langid's, read once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# The model's walk goes byte by byte: the first sentences tell as much as the whole text does.
_MOST_CHARS = 120
_FEWEST_LETTERS = 24
_CODE_BLOCK = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)


def identify_language(text: str) -> str | None:
    """Tell the language of a text; None where there are too few letters outside of code blocks."""
    if "```" in text:
        text = _CODE_BLOCK.sub(" ", text)
    text = text[:_MOST_CHARS]
    # Six characters of another script say as much as a word.
    fewest = _FEWEST_LETTERS if text.isascii() else _FEWEST_LETTERS // 4
    if sum(map(str.isalpha, text)) < fewest:
        return None
    return str(_load_model().classify(text)[0])


@lru_cache(maxsize=1)
def _load_model() -> Any:
    # Late: the model takes a second that sources with labels need not spend.
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # noqa: PLC0415

    class Identifier(LanguageIdentifier):  # type: ignore[misc]  # it has no types
        """The model; a third of a text's cost was in how its few features were added up."""

        __slots__ = ()

        def _sparse_score(self, visits: Mapping[int, int], table: Floats) -> Floats:
            """Add up the features' rows of the table by their counts; shape [n_languages].

            A matrix product of this size wakes the threads of the linear algebra library, which
            then spin; and half precision, in which the table is stored, would be widened each time.
            """
            n = len(visits)
            rows = table.take(np.fromiter(visits.keys(), np.intp, n), axis=0)
            counts = np.fromiter(visits.values(), np.float32, n)
            scores: Floats = np.einsum("i,ij->j", np.log1p(counts), rows) + self.nb_pc
            return scores

    model = Identifier.from_model_file(MODEL_FILE)
    model.nb_ptc = model.nb_ptc.astype(np.float32)
    return model
