"""The command that tells how far a run is, once or until its end, or of all runs below a root.

It is thin, as those in cli.py are; heavy imports stay inside it, so that help answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Json


def status(
    prefix: Annotated[
        str | None,
        typer.Argument(
            metavar="PREFIX",
            help="The run's prefix (s3://..., file://..., a folder), or its configuration.",
        ),
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Instead of one run: all runs over one source below this root, or below the "
            "store.uri of this configuration, each with the command that takes it up.",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until the run is done.")
    ] = False,
    every: Annotated[
        float, typer.Option(help="Seconds between two looks.", min=0.1, max=3600)
    ] = 5.0,
    json: Json = False,
) -> None:
    """Tell how far a run is: from anywhere by its store, on its box with the journals.

    With --watch and --json, standard output is one JSON object a line.
    """
    if root is not None:
        if prefix is not None or watch:
            raise typer.BadParameter("--root goes with no PREFIX and no --watch")
        from flows.command_line.overview import describe_survey, survey_root

        answer("status-root", lambda: survey_root(root, tell=not json), describe_survey, json=json)
        return
    if prefix is None:
        raise typer.BadParameter("give the PREFIX of a run, or --root")
    from flows.command_line.status import describe_status, read_status, watch_status

    def find() -> dict[str, object]:
        return watch_status(prefix, every, json=json) if watch else read_status(prefix)

    def suggest(found: dict[str, object]) -> tuple[str, ...]:
        done = found["stage"] == "done"
        return (
            ("draftmill", "verify", prefix) if done else ("draftmill", "status", prefix, "--watch")
        )

    answer("status", find, describe_status, json=json, compact=watch, then=suggest)
