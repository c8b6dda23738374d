"""Progress of a long step, told now and then: rows that passed, and how many a second."""

from __future__ import annotations

import time
from collections.abc import Callable

Tell = Callable[[str], None]

_EVERY_SECONDS = 10.0


class Pace:
    """Counts rows of one step and tells of them every ten seconds; a short step says nothing."""

    def __init__(self, what: str, tell: Tell | None, n_total: int | None = None) -> None:
        """Begin a step named `what`, over `n_total` rows where that is known."""
        self._what = what
        self._tell = tell
        self._total = "" if n_total is None else f" of {n_total:,}"
        self._n_rows = 0
        self._began = self._told = time.monotonic()

    def step(self, n_rows: int) -> None:
        """Count rows that passed."""
        self._n_rows += n_rows
        now = time.monotonic()
        if self._tell is not None and now - self._told >= _EVERY_SECONDS:
            self._told = now
            speed = self._n_rows / (now - self._began)
            self._tell(f"{self._what}: {self._n_rows:,}{self._total} rows, {speed:,.0f} a second")
