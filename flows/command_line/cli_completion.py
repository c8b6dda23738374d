"""The command that gives a shell its completion: typer's script, shown or installed.

Enters: the name of a shell. Leaves: its script, or the place where it was installed. It exists
because typer's own two options guess the shell by the parent process, which is none in a container
or under make, and because they load pydantic for the help of every command.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flows.command_line.cli_answer import answer
from flows.command_line.cli_arguments import Json

if TYPE_CHECKING:
    from rich.text import Text

PROGRAM = "draftmill"
# How a shell asks for completion: this variable tells which shell it is.
_ASKED = "_DRAFTMILL_COMPLETE"
# Zsh reads the script at the first press of the tab key, and wants an answer to that one too.
_AT_FIRST = """
if [ "$funcstack[1]" = "_draftmill" ]; then
  _draftmill_completion "$@"
fi"""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish")],
    install: Annotated[
        bool, typer.Option("--install", help="Put it where the shell finds it, for this user.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the completion script of a shell, or install it.

    Exit 0 shown or installed, 2 the home cannot be written.
    """
    find = _install_script if install else _find_script
    answer("completion", lambda: find(shell), _describe_completion, json=json)


def answer_shells() -> None:
    """Make typer able to answer a shell that asks for completions; else, load nothing."""
    if _ASKED in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def _find_script(shell: str) -> dict[str, Any]:
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    # The argument names a shell, and runs none: B604 takes it for subprocess's.
    script = get_completion_script(prog_name=PROGRAM, complete_var=_ASKED, shell=shell)  # nosec B604
    return {"shell": shell, "script": script + _AT_FIRST if shell == "zsh" else script}


def _install_script(shell: str) -> dict[str, Any]:
    from typer.completion import install  # type: ignore[attr-defined]

    _, path = install(shell=shell, prog_name=PROGRAM, complete_var=_ASKED)  # nosec B604
    path.write_text(_find_script(shell)["script"] + "\n")
    return {"shell": shell, "path": str(path)}


def _describe_completion(found: dict[str, Any]) -> Text:
    """Give the script as it is, or say where it is and when it takes effect."""
    from rich.text import Text

    if "script" in found:
        return Text(found["script"])
    return Text(f"installed in {found['path']}; a new {found['shell']} has it")
