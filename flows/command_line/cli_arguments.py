"""Arguments and options that several commands share, and the group that commands are in."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

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


class Commands(TyperGroup):
    """A group that tells without pydantic that no help was asked of it.

    Typer gives `--help` no default, and reads what is not there through pydantic: half of the time
    that the help of one of its commands takes.
    """

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option a default."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False
        return option
