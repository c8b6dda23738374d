"""What a repair knows to be damaged, for the run that mends it.

Enters: keys that verification found. Leaves: the same, in whatever run is started next. It exists
because a run looks at sizes and ends alone, and would take a damaged shard or page for a whole one.
"""

from __future__ import annotations

from contextvars import ContextVar

known_damage: ContextVar[frozenset[str]] = ContextVar("known_damage", default=frozenset())
known_missing: ContextVar[frozenset[str]] = ContextVar("known_missing", default=frozenset())
