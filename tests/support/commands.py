"""The commands of the command line, as the command line itself has them.

    for command in list_commands(): ...

Enters: flows.cli's application. Leaves: each command with what its code and its help say. It exists
so that a test over every command cannot forget a new one.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from typer.main import get_command

from flows.cli import app

_EXIT = re.compile(r"\bExit (.*?)(?:\.\s|\.$|$)", re.S)
# The doctor answers by itself, with codes of its own.
_DOCTOR = ("validate",)


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words after `draftmill`, and the function that it is."""

    words: tuple[str, ...]
    options: frozenset[str]
    function: Callable[..., Any]

    @property
    def name(self) -> str:
        """Its words, as they are written."""
        return " ".join(self.words)

    @property
    def schemas(self) -> list[str]:
        """The kinds of JSON documents that it answers with, from its code."""
        if self.words == _DOCTOR:
            return ["validate"]
        return sorted(_find_kinds(self.function))

    @property
    def codes(self) -> list[int]:
        """The exit codes that its help tells of."""
        told = _EXIT.search(inspect.getdoc(self.function) or "")
        return sorted({int(code) for code in re.findall(r"\b\d\b", told[1])}) if told else []


def list_commands() -> list[Command]:
    """List every command, those within groups by all of their words."""
    return list(_walk(get_command(app), ()))


def _walk(node: Any, words: tuple[str, ...]) -> Iterator[Command]:
    if not hasattr(node, "commands"):
        options = frozenset(name for param in node.params for name in param.opts)
        yield Command(words, options, inspect.unwrap(node.callback))
        return
    for name, child in node.commands.items():
        yield from _walk(child, (*words, name))


def _find_kinds(function: Callable[..., Any]) -> set[str]:
    """Find what a function, or one of its own module that it calls, hands to `answer`."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(function)))  # type: ignore[arg-type]
    bodies = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    kinds: set[str] = set()
    reached, to_read = {function.__name__}, [function.__name__]
    while to_read:
        for call in ast.walk(bodies[to_read.pop()]):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
                continue
            if call.func.id == "answer":
                assert isinstance(call.args[0], ast.Constant)
                kinds.add(str(call.args[0].value))
            elif call.func.id in bodies and call.func.id not in reached:
                reached.add(call.func.id)
                to_read.append(call.func.id)
    return kinds
