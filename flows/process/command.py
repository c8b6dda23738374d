"""How the command line was called, for the flow that tells how to go on.

Enters: the words of the call. Leaves: the same, in whatever the command runs. It exists because a
flow knows its configuration and not the file that it was read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

called: ContextVar[tuple[str, ...]] = ContextVar("called", default=("draftmill", "run", "CONFIG"))


def write_next(command: str, config: str, sets: Sequence[str] | None) -> tuple[str, ...]:
    """Give the words of a command over the same configuration, with the same overrides."""
    overrides = (word for each in sets or () for word in ("--set", each))
    return ("draftmill", command, config, *overrides)
