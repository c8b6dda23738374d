"""How a run tells what it is doing: log lines in Prefect, a live line on a terminal.

The flow speaks to whichever narrator stands in `narrator`; the command line puts its own there.
Prompt text never passes through here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far generation is, over all chunks that were begun."""

    n_done: int
    n_total: int
    n_failed: int
    n_output_tokens: int
    n_in_flight: int
    seconds: float


class Narrator(Protocol):
    """What a flow can say."""

    def stage(self, title: str, detail: str = "") -> None:
        """Begin a stage of the road."""

    def note(self, text: str) -> None:
        """Tell one fact."""

    def progress(self, state: RunProgress) -> None:
        """Tell how far generation is."""


class LogNarrator:
    """Writes one log line a stage, and a progress line at most every few seconds."""

    def __init__(self, every_seconds: float = 10.0) -> None:
        self._every = every_seconds
        self._last = 0.0

    def stage(self, title: str, detail: str = "") -> None:
        """Log the stage."""
        self.note(f"{title}: {detail}" if detail else title)

    def note(self, text: str) -> None:
        """Log the fact."""
        # Prefect is imported late: the command line must set its environment first.
        from prefect.logging import get_run_logger  # noqa: PLC0415

        get_run_logger().info(text)

    def progress(self, state: RunProgress) -> None:
        """Log the counts, now and then."""
        now = time.monotonic()
        if now - self._last >= self._every or state.n_done == state.n_total:
            self._last = now
            self.note(describe_progress(state))


class ConsoleNarrator:
    """Prints stages, and keeps one live line for generation, on standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._began = time.monotonic()

    def stage(self, title: str, detail: str = "") -> None:
        """Print the stage with the seconds since the start."""
        elapsed = time.monotonic() - self._began
        self._console.print(
            f"[dim]{elapsed:6.1f} s[/]  [bold]{title:<12}[/] {escape(detail)}", soft_wrap=True
        )

    def note(self, text: str) -> None:
        """Print the fact below its stage."""
        self._console.print(f"{'':23}{text}", style="dim", markup=False, soft_wrap=True)

    def progress(self, state: RunProgress) -> None:
        """Move the live line."""
        if self._bar is not None:
            self._bar.update(
                self._bar.task_ids[0],
                completed=state.n_done,
                total=state.n_total,
                counts=describe_progress(state),
            )

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live line while the block runs, where the output is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        columns = (TextColumn(f"{'':21}"), BarColumn(24), TextColumn("{task.fields[counts]}"))
        with Progress(
            *columns, TimeElapsedColumn(), console=self._console, transient=True
        ) as self._bar:
            self._bar.add_task("generate", total=None, counts="")
            yield
        self._bar = None


def describe_progress(state: RunProgress) -> str:
    """Put the counts of generation in one line."""
    failed = f", {state.n_failed:,} failed" if state.n_failed else ""
    speed = state.n_output_tokens / state.seconds if state.seconds else 0
    return (
        f"{state.n_done:,}/{state.n_total:,} conversations{failed}, "
        f"{state.n_output_tokens:,} tokens, {speed:,.0f} tokens/s, "
        f"{state.n_in_flight:,} in flight"
    )


narrator: ContextVar[Narrator] = ContextVar("narrator", default=LogNarrator())  # noqa: B039
