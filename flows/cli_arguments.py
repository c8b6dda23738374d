"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="A YAML file, or the name of a shipped profile.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a value, given as YAML.", metavar="KEY.PATH=VALUE"),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Prefix = Annotated[
    str,
    typer.Argument(
        metavar="PREFIX",
        help="The run's prefix (s3://..., file://..., a folder), or its configuration.",
    ),
]
