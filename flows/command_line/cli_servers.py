"""`draftmill servers`: the fleet on this host. Thin: each command calls what does the work.

Heavy imports stay inside the commands, so that help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Commands, Config, Json, Sets

SglangVersion = Literal["0.5.12", "0.5.23"]
servers_app = typer.Typer(cls=Commands, help="The fleet on this host.", no_args_is_help=True)


@servers_app.command("up")
def servers_up(config: Config, set_: Sets = None, json: Json = False) -> None:
    """Bring the fleet of a configuration up, or adopt an equal one, and leave it up.

    Exit 0 every server ready or given up, 1 the fleet failed, 2 yours to fix.
    """
    from flows.stages.host_fleet import describe_fleet, start_fleet

    answer(
        "servers",
        lambda: start_fleet(config, set_ or ()),
        describe_fleet,
        json=json,
        then=lambda _: ("draftmill", "servers", "status"),
    )


@servers_app.command("logs")
def servers_logs(
    index: Annotated[int | None, typer.Argument(metavar="[SERVER]", help="0, 1, ...")] = None,
    lines: Annotated[int, typer.Option("--lines", help="Lines of each log.", min=1)] = 50,
    json: Json = False,
) -> None:
    """Show the end of each server's log, or of one server's."""
    from flows.stages.host_fleet import describe_logs, read_logs

    answer("logs", lambda: read_logs(index, lines), describe_logs, json=json)


@servers_app.command("status")
def servers_status(json: Json = False) -> None:
    """Show the servers that this host's supervisor holds."""
    from flows.stages.host_fleet import describe_fleet, read_fleet

    answer("servers", read_fleet, describe_fleet, json=json)


@servers_app.command("install")
def servers_install(
    sglang: Annotated[SglangVersion, typer.Option("--sglang", help="Version of sglang.")],
    to: Annotated[
        Path | None, typer.Option("--to", help="Folder; default: DRAFTMILL_HOME/servers/VERSION.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the commands.")] = False,
    json: Json = False,
) -> None:
    """Build the servers' own Python environment, of pins that go together; resumes if cut off."""
    from flows.command_line.install import describe_install, install_servers

    answer(
        "install",
        lambda: install_servers(sglang, to, dry_run=dry_run),
        describe_install,
        json=json,
    )


@servers_app.command("down")
def servers_down(json: Json = False) -> None:
    """End the fleet that this host's supervisor holds."""
    from flows.stages.host_fleet import describe_fleet, end_fleet

    answer("servers", end_fleet, describe_fleet, json=json)
