"""The commands about sources of prompts: what they give, how they mix, how one is added.

They are thin, as those in cli.py are; heavy imports stay inside them, so that help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Commands, Config, Json, Sets
from flows.process.command import write_next

sources_app = typer.Typer(cls=Commands, help="Sources of prompts.", no_args_is_help=True)


def mix(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Show the mix by domain before and after, and each source's cap. Generates nothing.

    Exit 0 shown (also where a share cannot be reached), 2 yours to fix.
    """
    from flows.command_line.mix import describe_mix, show_mix
    from flows.configuration.load import load_config

    answer(
        "mix",
        lambda: show_mix(load_config(config, set_ or ()).config),
        describe_mix,
        json=json,
        then=lambda _: write_next("plan", config, set_),
    )


@sources_app.command("add")
def sources_add(
    file: Annotated[Path, typer.Argument(help="Rows: .jsonl (.gz, .zst) or .parquet.")],
    name: Annotated[str | None, typer.Option(help="Of the source; default: the file's.")] = None,
    into: Annotated[
        Path | None, typer.Option(help="Configuration that gets the entry; default: shown only.")
    ] = None,
    json: Json = False,
) -> None:
    """Write a source's entry by looking at the first rows of a file.

    Exit 0 written or shown, 2 no known shape fits.
    """
    from flows.command_line.sources import add_source, describe_source

    answer(
        "source",
        lambda: add_source(file, name, into),
        describe_source,
        json=json,
        then=lambda _: () if into is None else ("draftmill", "plan", str(into)),
    )


@sources_app.command("show")
def sources_show(
    name: Annotated[str, typer.Argument(help="Of the configuration, or of the registry.")],
    config: Annotated[
        str | None, typer.Option(help="A YAML file, or the name of a shipped profile.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a source's entry, and three of its rows before and after.

    Exit 0 shown, 2 no such source, or it cannot be read.
    """
    from flows.command_line.sources import describe_source, show_source
    from flows.configuration.load import load_config

    answer(
        "source",
        lambda: show_source(name, load_config(config).config if config else None),
        describe_source,
        json=json,
    )
