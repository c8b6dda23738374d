"""How the command line speaks: one message an error, tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from tasks.errors import DraftmillError

JSON_SCHEMA = 1
OUT = Console(highlight=False)
ERR = Console(stderr=True, highlight=False)

EXIT_SIGINT = 130


def answer(
    kind: str,
    find: Callable[[], dict[str, Any]],
    describe: Callable[[dict[str, Any]], RenderableType],
    *,
    json: bool,
) -> dict[str, Any]:
    """Find something out and show it; end the process plainly where that fails.

    A fault that is not ours keeps its traceback: hiding it would hide where to look.

    Args:
        kind: Names the JSON document: `draftmill/<kind>/<version>`.
        find: Gives the values; may raise DraftmillError.
        describe: Lays the values out for a person.
        json: Whether standard output is one JSON object.
    """
    try:
        found = find()
    except DraftmillError as error:
        _tell(error, json)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        ERR.print("stopped; what is finished is kept: run the same command to go on")
        raise typer.Exit(EXIT_SIGINT) from None
    if json:
        print_json(kind, found)
    else:
        OUT.print(describe(found), soft_wrap=isinstance(found, str))
    return found


def print_json(kind: str, value: dict[str, Any]) -> None:
    """Print one JSON object; `schema` names its kind and version."""
    document = {"schema": f"draftmill/{kind}/{JSON_SCHEMA}", **value}
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2, default=str) + b"\n")
    sys.stdout.buffer.flush()


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Lay rows out in columns."""
    grid = Table(box=None, pad_edge=False, header_style="dim", show_edge=False)
    for title in head:
        grid.add_column(title, overflow="fold")
    for row in rows:
        grid.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return grid


def _tell(error: DraftmillError, json: bool) -> None:
    if json:
        print_json("error", {"error": type(error).__name__, **vars(error)})
    else:
        ERR.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
