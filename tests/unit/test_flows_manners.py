"""The command line's manners hold for every command that there is: help, JSON, exit codes."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks.errors
from flows.cli import main
from flows.process.speak import EXIT_SIGINT, EXIT_SIGTERM
from tasks.errors import DraftmillError
from tests.support.commands import Command, list_commands
from tests.support.simulator import ROOT

COMMANDS = list_commands()
NAMES = [command.name for command in COMMANDS]
PAGE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
# What help must not wait for: each takes longer than all of help.
HEAVY = ("pydantic", "rich", "asyncio", "prefect", "numpy", "httpx")


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_a_command_has_json_and_says_what_it_is_for(command: Command) -> None:
    assert {"--json", "--help"} & command.options == {"--json"}
    told = (command.function.__doc__ or "").splitlines()[0]
    assert told.endswith(".")


@pytest.mark.parametrize("command", COMMANDS, ids=NAMES)
def test_words_that_a_command_does_not_know_are_one_json_object(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["draftmill", *command.words, "--json", "--no-such-word"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["schema"] == "draftmill/error/1"
    assert document["error"] == "UsageError"
    assert "--no-such-word" in told.err
    # To the caller of validate, 2 would be a judgement.
    assert ended.value.code == (3 if command.name == "validate" else 2)


def test_help_loads_nothing_that_it_does_not_need() -> None:
    told = "import sys; sys.argv = ['draftmill', *sys.argv[1:]]; from flows.cli import main\n"
    told += "try: main()\nexcept SystemExit: pass\n"
    told += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    for words in ((), ("run",), ("servers", "install")):
        ran = subprocess.run(
            [sys.executable, "-c", told, *words, "--help"],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        assert "--help" in ran.stdout
        assert ran.stderr.strip() == "[]"


def test_the_exit_codes_of_the_page_are_those_of_the_code() -> None:
    told = {
        int(code): set(re.findall(r"`([A-Za-z]+)`", errors))
        for code, errors in re.findall(r"^\| (\d+) \|[^|]*\|([^|]*)\|$", PAGE, re.M)
    }
    assert set(told) == {0, 1, 2, EXIT_SIGINT, EXIT_SIGTERM} | set(find_exits())
    ours = [each for each in vars(tasks.errors).values() if is_error(each)]
    for error in ours:
        assert error.__name__ in told[error.exit_code], error.__name__
    assert set().union(*told.values()) == {error.__name__ for error in ours}


def is_error(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, DraftmillError) and each != DraftmillError


def find_exits() -> Iterator[int]:
    """Find the codes that the code of the command line ends with by number."""
    for path in Path(ROOT, "flows").rglob("cli*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Exit", "sys.exit"):
                numbers = (each for each in ast.walk(node) if isinstance(each, ast.Constant))
                yield from (each.value for each in numbers if isinstance(each.value, int))


def test_the_page_lists_every_command_with_its_schemas_and_exit_codes() -> None:
    rows = re.findall(r"^\| `draftmill ([a-z -]+)` \|([^|]*)\|([^|]*)\|$", PAGE, re.M)
    told = {name: (schemas.strip(), codes.strip()) for name, schemas, codes in rows}
    assert told == {
        command.name: (
            ", ".join(f"`{kind}`" for kind in command.schemas),
            ", ".join(map(str, command.codes)),
        )
        for command in COMMANDS
    }
    assert all(command.schemas for command in COMMANDS)


def test_the_next_command_is_named_beside_the_answer_and_not_in_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "a run.yaml"
    config.write_text(
        "extends: demo\nstore: {uri: s}\nsources: {mine: {path: x.jsonl, mapping: {prompt: q}}}\n"
    )
    words = ["config", "show", str(config), "--set", "name=other"]
    for asked in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["draftmill", *words, *asked])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        told = capsys.readouterr()
        following = f"next      draftmill plan '{config}' --set name=other"
        assert told.err.splitlines() == ([] if asked else [following])
        assert "next" not in told.out.split()
