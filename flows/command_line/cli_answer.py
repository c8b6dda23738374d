"""How commands answer: `speak.answer`, which is loaded only once a command runs.

Enters and leaves: what speak.answer takes and gives. It exists because help needs no console, no
event loop and no signals, whose imports take longer than all else that help does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType


def answer(
    kind: str,
    find: Callable[[], dict[str, Any]],
    describe: Callable[[dict[str, Any]], RenderableType],
    *,
    json: bool,
    compact: bool = False,
    then: Callable[[dict[str, Any]], Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Find something out and show it, as `speak.answer` says."""
    from flows.process.speak import answer as speak

    return speak(kind, find, describe, json=json, compact=compact, then=then)
