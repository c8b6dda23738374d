"""What a benchmark hands back: a table for people, figures for programs, and what makes it fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's results; with any fault the whole run fails."""

    table: Table
    figures: Any
    faults: tuple[str, ...] = ()


def make_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Lay rows out; cells that begin with a digit stand to the right."""
    table = Table(title=title)
    for place, name in enumerate(columns):
        is_number = all(row[place][:1].isdigit() for row in rows if row[place])
        table.add_column(name, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*row)
    return table
