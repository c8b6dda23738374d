"""The language of a text, where its row has no label of its own.

Enters: a text. Leaves: an ISO 639-1 code, or None where there is too little of it to tell. It
exists because labels are missing or wrong in many datasets; the model is py3langid's, read once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

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

    return LanguageIdentifier.from_model_file(MODEL_FILE)
