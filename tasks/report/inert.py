"""Strips from text what a terminal or a browser would act on.

Enters: text that strangers wrote. Leaves: the same text, inert. It exists apart from the page, so
that the command line and Prefect's artifacts show rows, names and messages by the same rule. Pure.
"""

from __future__ import annotations

_REMOVED = {
    **dict.fromkeys(c for c in (*range(32), *range(127, 160)) if c not in (9, 10)),
    # What reorders, hides or ends lines: bidi marks and overrides, zero-width ones, separators.
    **dict.fromkeys((0x061C, 0x180E, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F))),
    **dict.fromkeys(range(0x2060, 0x2070)),
    **dict.fromkeys((*range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080))),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def strip_controls(text: str) -> str:
    """Remove what a terminal or a browser would act on; newlines and tabs stay."""
    return text.translate(_REMOVED)
