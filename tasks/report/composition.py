"""What a dataset consists of: rows, supervised tokens and all tokens, by domain and by source.

Enters: one call a row while a dataset is written. Leaves: a Composition, which goes into the
manifest and the report. It exists because shares by rows hide what a drafter trains on: long
thinking skews the supervised tokens. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

LENGTH_EDGES = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
"""Upper edges of the length histogram, in tokens; a last bin takes what is longer."""


class Tally(BaseModel):
    """Rows and tokens of one domain, one source, or all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_rows: int = 0
    n_tokens: int = 0
    n_supervised_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        """Add two tallies."""
        return Tally(
            n_rows=self.n_rows + other.n_rows,
            n_tokens=self.n_tokens + other.n_tokens,
            n_supervised_tokens=self.n_supervised_tokens + other.n_supervised_tokens,
        )


class Composition(BaseModel):
    """Tallies of a dataset; by_domain, by_source and lengths each sum to the total."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    by_domain: dict[str, Tally] = {}
    by_source: dict[str, Tally] = {}
    lengths: tuple[int, ...] = (0,) * (len(LENGTH_EDGES) + 1)

    @property
    def total(self) -> Tally:
        """The tally of all rows."""
        return sum(self.by_domain.values(), Tally())

    @staticmethod
    def sum(compositions: Iterable[Composition]) -> Composition:
        """Add any number of compositions."""
        counter = CompositionCounter()
        for composition in compositions:
            counter.add_composition(composition)
        return counter.freeze()


@dataclass(slots=True)
class _Count:
    n_rows: int = 0
    n_tokens: int = 0
    n_supervised_tokens: int = 0

    def add(self, n_rows: int, n_tokens: int, n_supervised_tokens: int) -> None:
        self.n_rows += n_rows
        self.n_tokens += n_tokens
        self.n_supervised_tokens += n_supervised_tokens

    def freeze(self) -> Tally:
        return Tally(
            n_rows=self.n_rows,
            n_tokens=self.n_tokens,
            n_supervised_tokens=self.n_supervised_tokens,
        )


@dataclass(slots=True)
class CompositionCounter:
    """Counts rows while they pass; `freeze` gives the Composition so far."""

    _by_domain: dict[str, _Count] = field(default_factory=dict)
    _by_source: dict[str, _Count] = field(default_factory=dict)
    _lengths: list[int] = field(default_factory=lambda: [0] * (len(LENGTH_EDGES) + 1))

    def add(self, domain: str, source: str, n_tokens: int, n_supervised_tokens: int) -> None:
        """Count one row of `n_tokens`, of which `n_supervised_tokens` have mask 1."""
        self._by_domain.setdefault(domain, _Count()).add(1, n_tokens, n_supervised_tokens)
        self._by_source.setdefault(source, _Count()).add(1, n_tokens, n_supervised_tokens)
        self._lengths[bin_length(n_tokens)] += 1

    def add_composition(self, other: Composition) -> None:
        """Count all rows of another composition."""
        for counts, tallies in (
            (self._by_domain, other.by_domain),
            (self._by_source, other.by_source),
        ):
            for name, tally in tallies.items():
                counts.setdefault(name, _Count()).add(
                    tally.n_rows, tally.n_tokens, tally.n_supervised_tokens
                )
        self._lengths = [a + b for a, b in zip(self._lengths, other.lengths, strict=True)]

    def freeze(self) -> Composition:
        """Give the composition, its names in order."""
        return Composition(
            by_domain={name: count.freeze() for name, count in sorted(self._by_domain.items())},
            by_source={name: count.freeze() for name, count in sorted(self._by_source.items())},
            lengths=tuple(self._lengths),
        )


def bin_length(n_tokens: int) -> int:
    """Find the bin of a length: the first whose upper edge is not below it."""
    for index, edge in enumerate(LENGTH_EDGES):
        if n_tokens <= edge:
            return index
    return len(LENGTH_EDGES)


def share(part: int, whole: int) -> float:
    """Give part / whole, and 0 of nothing."""
    return part / whole if whole else 0.0
