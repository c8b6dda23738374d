"""Quantiles of any number of values in a few hundred counters.

Enters: values of zero and above, one at a time. Leaves: any quantile, within one percent. It exists
because p99 of a million latencies needs no list of them. Pure.

Source: the logarithmic buckets of DDSketch (Masson, Rim, Lee: VLDB 2019).
"""

from __future__ import annotations

import math
from collections import Counter

_LOG_GAMMA = math.log(1.02)


class Quantiles:
    """Counts values in buckets, each two percent wide."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.n_values = 0
        self.largest = 0.0
        self._n_zero = 0
        self._buckets: Counter[int] = Counter()

    def add(self, value: float) -> None:
        """Count a value; what is below zero counts as zero."""
        self.n_values += 1
        if value <= 0:
            self._n_zero += 1
            return
        self.largest = max(self.largest, value)
        self._buckets[math.ceil(math.log(value) / _LOG_GAMMA)] += 1

    def at(self, share: float) -> float | None:
        """Give the value that `share` of the values do not exceed; None of no values."""
        if not self.n_values:
            return None
        left = math.ceil(share * self.n_values) - self._n_zero
        if left <= 0:
            return 0.0
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                return min(self.largest, math.exp((bucket - 0.5) * _LOG_GAMMA))
        return self.largest
