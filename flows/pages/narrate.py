"""How a run tells what it is doing: log lines in Prefect, a live view on a terminal.

The flow speaks to whichever narrator stands in `narrator`; the command line puts its own there.
Prompt text never passes through here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from flows.pages.progress import RunProgress
from flows.pages.view import describe_chunk, draw_progress

_REFRESHES_A_SECOND = 2


class Narrator(Protocol):
    """What a flow can say."""

    def stage(self, title: str, detail: str = "") -> None:
        """Begin a stage of the road."""

    def note(self, text: str) -> None:
        """Tell one fact."""

    def progress(self, state: RunProgress) -> None:
        """Tell how far generation is."""


class LogNarrator:
    """Writes one log line a stage, and one a chunk."""

    def stage(self, title: str, detail: str = "") -> None:
        """Log the stage."""
        self.note(f"{title}: {detail}" if detail else title)

    def note(self, text: str) -> None:
        """Log the fact."""
        # Prefect is imported late: the command line must set its environment first.
        from prefect.logging import get_run_logger  # noqa: PLC0415

        get_run_logger().info(text)

    def progress(self, state: RunProgress) -> None:
        """Log the counts whenever a chunk is published."""
        if state.ended_chunk is not None:
            self.note(describe_chunk(state))


class ConsoleNarrator:
    """Prints stages, and keeps a live view of generation, on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._began = time.monotonic()

    def stage(self, title: str, detail: str = "") -> None:
        """Print the stage with the seconds since the start."""
        if self._live is not None:
            # What comes now has no counts; those of the stage before would stand there for ever.
            self._live.update("")
        elapsed = time.monotonic() - self._began
        self._console.print(
            f"[dim]{elapsed:6.1f} s[/]  [bold]{title:<12}[/] {escape(detail)}", soft_wrap=True
        )

    def note(self, text: str) -> None:
        """Print the fact below its stage."""
        self._console.print(f"{'':23}{text}", style="dim", markup=False, soft_wrap=True)

    def progress(self, state: RunProgress) -> None:
        """Move the live view; where there is none, print a line a chunk."""
        if self._live is not None:
            self._live.update(draw_progress(state))
        elif state.ended_chunk is not None:
            self.note(describe_chunk(state))

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live view while the block runs, where the output is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(
            console=self._console, transient=True, refresh_per_second=_REFRESHES_A_SECOND
        ) as self._live:
            yield
        self._live = None


narrator: ContextVar[Narrator] = ContextVar("narrator", default=LogNarrator())  # noqa: B039
