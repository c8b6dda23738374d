"""The commands that run an expansion and that mend one: over all sources, or over one of them.

They are thin, as those in cli.py are; heavy imports stay inside them, so that help answers at once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Config, Json, Sets

Source = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Over this one source alone, on a prefix of its own below store.uri, as a trigger "
        "does.",
    ),
]
Revision = Annotated[
    str | None,
    typer.Option(metavar="COMMIT", help="The source's revision; without it, the newest."),
]


def run(
    config: Config,
    set_: Sets = None,
    source: Source = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Run an expansion, or take it up where it stopped.

    Exit 0 done, 1 ended early, 2 yours to fix, 3 the canary waits for you to look at it.
    """
    found = _launch("expand", config, set_, source, revision, json=json)
    if found["state"] == "AwaitingReview":
        raise typer.Exit(3)


def retry_failures(
    config: Config,
    set_: Sets = None,
    source: Source = None,
    revision: Revision = None,
    json: Json = False,
) -> None:
    """Ask the failed and partial conversations of a finished run anew.

    What comes is a later revision of the dataset. Exit 0 done, or nothing had failed; 1 ended
    early; 2 yours to fix.
    """
    _launch("retry-failures", config, set_, source, revision, json=json)


def _launch(
    flow: Literal["expand", "retry-failures"],
    config: str,
    set_: list[str] | None,
    source: str | None,
    revision: str | None,
    *,
    json: bool,
) -> dict[str, Any]:
    from flows.command_line.launch import launch_expansion
    from flows.command_line.summary import describe_summary, show_place
    from flows.configuration.complete import check_source
    from flows.configuration.load import load_config
    from flows.process.command import called

    named = {"--source": source, "--revision": revision}
    options = [word for name, value in named.items() if value for word in (name, value)]
    sets = [word for value in set_ or () for word in ("--set", value)]
    called.set(("draftmill", "run", config, *options, *sets))

    def suggest(found: dict[str, Any]) -> tuple[str, ...]:
        match found["state"]:
            case "Completed":
                return ("draftmill", "verify", show_place(found["uri"]))
            case "CompletedPartial":
                return ("draftmill", "retry-failures", config, *options, *sets)
        return ()  # a canary that waits has told its own, and nothing new needs none

    def launch() -> dict[str, Any]:
        loaded = load_config(config, set_ or ()).config
        check_source(loaded, source, revision)  # before Prefect, which takes seconds
        return launch_expansion(loaded, flow=flow, source=source, revision=revision)

    return answer(
        "run",
        launch,
        describe_summary,
        json=json,
        then=suggest,
    )
