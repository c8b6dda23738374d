"""How the command line was called, for the flow that tells how to go on.

Enters: the words of the call. Leaves: the same, in whatever the command runs. It exists because a
flow knows its configuration and not the file that it was read from.
"""

from __future__ import annotations

from contextvars import ContextVar

called: ContextVar[tuple[str, ...]] = ContextVar("called", default=("draftmill", "run", "CONFIG"))
