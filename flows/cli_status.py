"""The command that tells how far a run is, once or until its end.

It is thin, as those in cli.py are; heavy imports stay inside it, so that help answers at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from flows.cli_arguments import Json, Prefix
from flows.speak import answer


def status(
    prefix: Prefix,
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
    from flows.status import describe_status, read_status, watch_status

    def find() -> dict[str, object]:
        return watch_status(prefix, every, json=json) if watch else read_status(prefix)

    answer("status", find, describe_status, json=json, compact=watch)
