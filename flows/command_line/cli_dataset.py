"""The commands about a finished dataset: export it, look into it, publish it.

They are thin, as those in cli.py are; heavy imports stay inside them, so that help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Json, Prefix

Form = Literal["specforge", "speculators", "messages", "parquet"]


def export(
    prefix: Prefix,
    to: Annotated[Path, typer.Option(help="Folder for the files; absent or empty.")],
    form: Annotated[
        Form,
        typer.Option(
            "--format",
            help="specforge: JSON lines of input_ids and loss_mask; speculators: a folder for "
            "load_from_disk; messages: JSON lines of conversations; parquet: the rows as they are.",
        ),
    ] = "specforge",
    json: Json = False,
) -> None:
    """Write a finished dataset as trainers read it, with a card that says what it was made from."""
    from flows.dataset.export import describe_export, export_dataset

    answer(
        "export",
        lambda: export_dataset(prefix, form, to),
        describe_export,
        json=json,
        then=lambda _: ("draftmill", "push", prefix, "--to", "OWNER/NAME"),
    )


def report(
    prefix: Prefix,
    to: Annotated[
        Path | None, typer.Option(help="HTML file to write; default: NAME-rNNNN.html here.")
    ] = None,
    read_data: Annotated[
        str,
        typer.Option(
            "--read-data",
            metavar="[SHARE]",
            help="Share of the objects that its verification reads in full; data parts always are.",
        ),
    ] = "0%",
    json: Json = False,
) -> None:
    """Write the report of a finished dataset again, from its store alone, with a verdict on it.

    Exit 0 written, 1 the verdict names faults, 2 yours to fix.
    """
    from flows.pages.report import describe_report, write_report

    found = answer(
        "report", lambda: write_report(prefix, to, read_data), describe_report, json=json
    )
    if not found["verification"]["ok"]:
        raise typer.Exit(1)


def show(
    sample_id: Annotated[
        str, typer.Argument(metavar="SAMPLE_ID", help="PROMPT#s0#g0, as the dataset's `id` has it.")
    ],
    prefix: Prefix = ".",
    json: Json = False,
) -> None:
    """Show one sample: its source row, the server that answered, its tokens by mask, its text."""
    from flows.command_line.show_sample import describe_sample, find_sample

    answer("show", lambda: find_sample(sample_id, prefix), describe_sample, json=json)


def push(
    prefix: Prefix,
    to: Annotated[str, typer.Option(help="Dataset repository of the Hub: owner/name.")],
    private: Annotated[
        bool, typer.Option("--private/--public", help="What a repository that is made will be.")
    ] = True,
    json: Json = False,
) -> None:
    """Publish a finished dataset with its card; a push that was cut off goes on."""
    from flows.command_line.push import describe_push, push_dataset

    answer("push", lambda: push_dataset(prefix, to, private=private), describe_push, json=json)
