"""`draftmill tune`: runs the `tune` flow from the command line, and lays its table out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.command_line.launch import check_server
from flows.configuration.load import load_config
from flows.pages.narrate import ConsoleNarrator, narrator
from flows.process.embedded import prepare_prefect
from flows.process.signals import run_until_signal
from flows.process.speak import ERR, table
from tasks.settings import read_settings


def launch_tuning(
    source: str, sets: Sequence[str], out: Path | None, seconds: float
) -> dict[str, Any]:
    """Tune the servers of a configuration.

    Raises:
        DraftmillError: Why nothing was found.
        KeyboardInterrupt: SIGINT or SIGTERM came; the candidates are ended.
    """
    config = load_config(source, sets).config
    path = (out or Path(f"{config.name}-tuned.yaml")).absolute()
    prepare_prefect(read_settings())
    narrator.set(ConsoleNarrator(ERR))

    async def run() -> dict[str, Any]:
        await check_server()
        # Only now: Prefect reads its settings when it is imported.
        from flows.tune import tune  # noqa: PLC0415

        state = await tune(config, seconds, str(path), return_state=True)
        result = await state.aresult(raise_on_failure=False)
        if isinstance(result, BaseException):
            raise result
        return dict(result)

    return run_until_signal(run)


def describe_tuning(found: dict[str, Any]) -> RenderableType:
    """Lay the candidates out, the fastest first."""
    from flows.stages.tune_evidence import draw_bars, tabulate  # noqa: PLC0415
    from tasks.serving.trial import TrialResult  # noqa: PLC0415

    results = [TrialResult.model_validate(result) for result in found["results"]]
    rows = tabulate(results)
    return Group(
        table(tuple(rows[0]), [tuple(row.values()) for row in rows]),
        "",
        draw_bars(results),
        "",
        escape(f"the fastest: {found['winner']}"),
        escape(f"profile: {found['profile']} (plot: {found['plot']})"),
    )
