"""Dotted paths into rows: `instances.0.input`.

Enters: a row and a path of a mapping. Leaves: the value there, or MISSING; and, for a mapping that
fits no row, the paths that do exist. It exists so that reading, filters and error messages agree on
what a path means.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rapidfuzz import fuzz, process

_LISTED_DEPTH = 3
_LISTED_PATHS = 200


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
"""What `lookup` gives where a path leads nowhere; a null is a value and not missing."""


def lookup(row: object, path: str) -> object:
    """Follow a dotted path through dicts (by key) and lists (by index)."""
    value = row
    if isinstance(row, dict):
        if path in row:  # a key may hold dots itself
            return row[path]
        if "." not in path:
            return MISSING
    for step in path.split("."):
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isascii() and step.isdigit():
            index = int(step[:9])
            value = value[index] if index < len(value) else MISSING
        else:
            return MISSING
    return value


def nearest_paths(rows: Sequence[object], path: str, limit: int = 3) -> list[str]:
    """List the existing paths most like a missing one, best first."""
    known = dict.fromkeys(found for row in rows for found in _list_paths(row, "", 0))
    choices = list(known)[:_LISTED_PATHS]
    ranked = process.extract(path, choices, scorer=fuzz.WRatio, limit=limit)
    return [choice for choice, _, _ in ranked]


def _list_paths(value: object, prefix: str, depth: int) -> Iterator[str]:
    if depth == _LISTED_DEPTH:
        return
    if isinstance(value, dict):
        steps = [(key, child) for key, child in value.items() if isinstance(key, str)]
    elif isinstance(value, list) and value:
        steps = [("0", value[0])]
    else:
        return
    for key, child in steps[:_LISTED_PATHS]:
        shown = "".join(c for c in key[:80] if c.isprintable())
        yield prefix + shown
        yield from _list_paths(child, f"{prefix}{shown}.", depth + 1)
