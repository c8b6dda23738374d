"""How the command line speaks: one message an error, tables for people, JSON for programs."""

from __future__ import annotations

import json as json_text
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from flows.process.signals import Terminated, heed_sigterm
from tasks.errors import DiskUnusable, DraftmillError
from tasks.report.inert import strip_controls

JSON_SCHEMA = 1
EXIT_SIGINT = 130
EXIT_SIGTERM = 143
# Into a file or a pipe no line is folded: what reads it wants whole paths.
_WIDTH_OF_PIPES = 10_000


class InertConsole(Console):
    """A console on which names and messages of strangers cannot act."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as Console does, without the control characters in any text."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=strip_controls(segment.text))
            )


def _open(*, stderr: bool) -> Console:
    console = InertConsole(stderr=stderr, highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_PIPES
    return console


OUT = _open(stderr=False)
ERR = _open(stderr=True)


def answer(
    kind: str,
    find: Callable[[], dict[str, Any]],
    describe: Callable[[dict[str, Any]], RenderableType],
    *,
    json: bool,
    compact: bool = False,
    then: Callable[[dict[str, Any]], Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Find something out and show it; end the process plainly where that fails.

    A fault that is not ours keeps its traceback: hiding it would hide where to look.

    Args:
        kind: Names the JSON document: `draftmill/<kind>/<version>`.
        find: Gives the values; may raise DraftmillError.
        describe: Lays the values out for a person.
        json: Whether standard output is one JSON object.
        compact: Whether that object is one line.
        then: Gives the command that a person would call next, or no words where there is none; it
            is told on standard error, so that what goes into a file or a pipe is the answer alone.
    """
    try:
        with heed_sigterm():
            found = find()
    except DraftmillError as error:
        _tell(error, json)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        explained = DiskUnusable.from_os(error)
        if explained is None:
            raise
        _tell(explained, json)
        raise typer.Exit(explained.exit_code) from None
    except KeyboardInterrupt as signalled:
        _tell_stopped(json)
        code = EXIT_SIGTERM if isinstance(signalled, Terminated) else EXIT_SIGINT
        raise typer.Exit(code) from None
    except Exception as error:
        if json:
            print_json("error", {"error": type(error).__name__, "what": str(error)})
        raise
    if json:
        print_json(kind, found, compact=compact)
    else:
        OUT.print(describe(found), soft_wrap=True)
        if then is not None and (words := then(found)):
            ERR.print(f"next      {escape(shlex.join(words))}", soft_wrap=True)
    return found


def print_json(kind: str, value: dict[str, Any], *, compact: bool = False) -> None:
    """Print one JSON object, on one line if `compact`; `schema` names its kind and version.

    All but ASCII is escaped: a terminal has nothing to act on, and a name that is no UTF-8 passes.
    """
    document = {"schema": f"draftmill/{kind}/{JSON_SCHEMA}", **value}
    print(json_text.dumps(document, indent=None if compact else 2, default=_encode), flush=True)  # noqa: T201


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Lay rows out in columns."""
    grid = Table(
        box=None, pad_edge=False, header_style="dim", show_edge=False, show_header=any(head)
    )
    for title in head:
        grid.add_column(escape(title), overflow="fold")
    for row in rows:
        grid.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return grid


def tell_usage(message: str) -> None:
    """Tell a program that its command line was wrong."""
    print_json("error", {"error": "UsageError", "what": message})


def _encode(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def _tell_stopped(json: bool) -> None:
    what = "stopped; what is finished is kept: run the same command to go on"
    if json:
        print_json("error", {"error": "Stopped", "what": what})
    else:
        ERR.print(what)


def _tell(error: DraftmillError, json: bool) -> None:
    if json:
        print_json("error", {"error": type(error).__name__, **vars(error)})
    else:
        ERR.print(f"[bold red]error[/] {escape(str(error))}", soft_wrap=True)
