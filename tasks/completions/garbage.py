"""How often Python looks for garbage while answers come in: rarely.

Enters and leaves: nothing; the collector's settings, for the time of a with block. It exists
because the default looks at the young objects after every 700 new ones and ever again at all the
others, modules and prompts: a third of a millisecond a request, which finds nothing. Reference
counts free what a request leaves behind; only failures leave cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# More than the prompts of the open chunks, which would be looked at for nothing; a failure leaves
# some dozens of objects and a closed connection seven, so memory stays flat.
_YOUNG_OBJECTS = 100_000
_YOUNG_ROUNDS = 20
_OLD_ROUNDS = 20


class _Users:
    """Who asked for rare collections; the last to leave puts everything back."""

    def __init__(self) -> None:
        self.n = 0
        self.before = gc.get_threshold()


_users = _Users()


@contextmanager
def collect_rarely() -> Iterator[None]:
    """Set what lives already apart, and collect rarely, until the last with block ends."""
    if _users.n == 0:
        _users.before = gc.get_threshold()
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _OLD_ROUNDS)
    _users.n += 1
    try:
        yield
    finally:
        _users.n -= 1
        if _users.n == 0:
            gc.set_threshold(*_users.before)
            gc.unfreeze()
