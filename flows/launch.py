"""Runs the `expand` flow from the command line, on the embedded Prefect or the user's server."""

from __future__ import annotations

import asyncio
from typing import Any

import typer

from flows.config import ExpansionConfig
from flows.embedded import prepare_prefect
from flows.narrate import ConsoleNarrator, narrator
from flows.speak import ERR
from tasks.settings import read_settings

EXIT_SIGTERM = 143


def launch_expansion(config: ExpansionConfig) -> dict[str, Any]:
    """Run an expansion to its end and give its summary.

    Raises:
        DraftmillError: Why the run ended early.
        typer.Exit: 143 after SIGTERM; what is finished is kept.
    """
    embedded = prepare_prefect(read_settings())
    console = ConsoleNarrator(ERR)
    console.stage("prefect", "embedded, starting" if embedded else "your server")
    # Only now: Prefect reads its settings when it is imported.
    from prefect.exceptions import TerminationSignal  # noqa: PLC0415

    narrator.set(console)
    try:
        with console.live():
            return asyncio.run(run_expansion(config))
    except TerminationSignal:
        ERR.print("stopped; what is finished is kept: run the same command to go on")
        raise typer.Exit(EXIT_SIGTERM) from None


async def run_expansion(config: ExpansionConfig) -> dict[str, Any]:
    """Run the flow with Prefect as it is set up now; give the summary or raise why not."""
    from flows.expand import expand  # noqa: PLC0415

    state = await expand(config, return_state=True)
    result = await state.aresult(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return dict(result)
