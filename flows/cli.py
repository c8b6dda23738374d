"""The `draftmill` command: each command is thin, speaks plainly, and never shows a traceback.

Exit codes: 0 done; 1 the run ended early, or verification found faults; 2 the user's to fix;
130 and 143 stopped by SIGINT and SIGTERM. With `--json` standard output is one JSON object.
Heavy imports stay inside the commands, so that help answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from typer.exceptions import TyperException

from flows.speak import answer, tell_usage

app = typer.Typer(
    name="draftmill",
    help="Regenerate answers to public prompts with your target model: exact-token training data "
    "for a speculative-decoding drafter.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Form = Literal["specforge", "messages"]
config_app = typer.Typer(help="Look at a configuration.", no_args_is_help=True)
servers_app = typer.Typer(help="The fleet on this host.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(servers_app, name="servers")

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


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything; default: .draftmill/demo/TIME.")
    ] = None,
    json: Json = False,
) -> None:
    """Run the whole road here: no GPU, no account.

    Invented rows, eight simulated servers, a folder as the store.
    """
    from flows.demo import run_demo
    from flows.summary import describe_summary

    answer("run", lambda: run_demo(out), describe_summary, json=json)


@app.command()
def run(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Run an expansion, or take it up where it stopped."""
    from flows.launch import launch_expansion
    from flows.load import load_config
    from flows.summary import describe_summary

    answer(
        "run",
        lambda: launch_expansion(load_config(config, set_ or ()).config),
        describe_summary,
        json=json,
    )


@app.command()
def plan(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Show what a run would do: sources, rows, tokens and keys. Writes nothing to the store."""
    from flows.load import load_config
    from flows.preview import describe_preview, preview

    answer(
        "plan",
        lambda: preview(load_config(config, set_ or ()).config),
        describe_preview,
        json=json,
    )


@config_app.command("show")
def config_show(
    config: Config,
    set_: Sets = None,
    origin: Annotated[bool, typer.Option("--origin", help="Tell where each comes from.")] = False,
    json: Json = False,
) -> None:
    """Show every value of a configuration."""
    from flows.load import describe_values, list_values

    answer(
        "config",
        lambda: list_values(config, set_ or ()),
        lambda values: describe_values(values, origin=origin),
        json=json,
    )


@app.command()
def status(prefix: Prefix, json: Json = False) -> None:
    """Tell how far a run is, from its store alone."""
    from flows.inspect import describe_status, read_status

    answer("status", lambda: read_status(prefix), describe_status, json=json)


@app.command()
def verify(
    prefix: Prefix,
    read_data: Annotated[
        float, typer.Option("--read-data", help="Share of objects read in full.", min=0, max=1)
    ] = 1.0,
    json: Json = False,
) -> None:
    """Hold every object that the manifest names against it.

    Exit 0 whole, 1 faults found, 2 cannot be read.
    """
    from flows.inspect import describe_verdict, verify_prefix

    verdict = answer(
        "verify", lambda: verify_prefix(prefix, read_data), describe_verdict, json=json
    )
    if not verdict["ok"]:
        raise typer.Exit(1)


@app.command()
def export(
    prefix: Prefix,
    to: Annotated[Path, typer.Option(help="Folder for the files; absent or empty.")],
    form: Annotated[
        Form, typer.Option("--format", help="specforge: input_ids and loss_mask; or messages.")
    ] = "specforge",
    json: Json = False,
) -> None:
    """Write a finished dataset as the JSON lines that trainers read."""
    from flows.export import describe_export, export_dataset

    answer("export", lambda: export_dataset(prefix, form, to), describe_export, json=json)


@servers_app.command("status")
def servers_status(json: Json = False) -> None:
    """Show the servers that this host's supervisor holds."""
    from flows.servers import describe_fleet, read_fleet

    answer("servers", read_fleet, describe_fleet, json=json)


@servers_app.command("down")
def servers_down(json: Json = False) -> None:
    """End the fleet that this host's supervisor holds."""
    from flows.servers import describe_fleet, end_fleet

    answer("servers", end_fleet, describe_fleet, json=json)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Draftmill."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"draftmill {installed('draftmill')}")
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    try:
        sys.exit(app(standalone_mode=False))
    except TyperException as error:
        error.show()  # type: ignore[attr-defined]  # all that typer raises have it
        if "--json" in sys.argv:
            tell_usage(str(error))
        sys.exit(2)


if __name__ == "__main__":
    main()
