"""Every command of README and docs is run by a test, or its reason stands in docs/limits.md."""

from __future__ import annotations

import subprocess

import pytest

from tests.bench.__main__ import BENCHMARKS
from tests.support.commands import list_commands
from tests.support.documented import find_documented, list_words, read_test
from tests.support.documented_runs import ANSWERS, ELSEWHERE, NOT_HERE, STEPS
from tests.support.simulator import ROOT

DOCUMENTED = find_documented()
LIMITS = " ".join((ROOT / "docs" / "limits.md").read_text(encoding="utf-8").split())


BENCH = "python -m tests.bench"


def is_told_of(command: str) -> bool:
    """Tell whether a table has a command, or one that begins with the same words."""
    tables = (STEPS, ELSEWHERE, NOT_HERE)
    if any(command in table for table in tables) or command.startswith(BENCH):
        return True
    words = command.split()
    # A mention: the page goes on in words about a command that stands whole elsewhere.
    return any(each.split()[: len(words)] == words for table in tables for each in table)


@pytest.mark.parametrize("command", DOCUMENTED)
def test_a_documented_command_is_run_by_a_test(command: str) -> None:
    assert is_told_of(command), (
        f"`{command}` of {', '.join(DOCUMENTED[command])} is run by no test: put it into a table "
        "of tests/support/documented_runs.py"
    )


def test_the_tables_have_no_command_that_no_page_tells_of() -> None:
    assert {*STEPS, *ELSEWHERE, *NOT_HERE} - set(DOCUMENTED) == set()


@pytest.mark.parametrize(("command", "place"), ELSEWHERE.items(), ids=list(ELSEWHERE))
def test_a_command_that_is_run_elsewhere_is_run_there(command: str, place: str) -> None:
    texts = read_test(place)
    missing = [word for word in list_words(command) if word not in texts]
    assert not missing, f"{place} says nothing of {missing}"


@pytest.mark.parametrize(("command", "reason"), NOT_HERE.items(), ids=list(NOT_HERE))
def test_what_cannot_be_run_here_stands_among_the_limits(command: str, reason: str) -> None:
    assert reason in LIMITS, command


def test_every_command_is_asked_for_json() -> None:
    asked = set(ANSWERS)
    asked |= {
        command.name
        for command in list_commands()
        for run in STEPS.values()
        if run.startswith(f"draftmill {command.name} ") and run.endswith(" --json")
    }
    assert asked == {command.name for command in list_commands()}


@pytest.mark.parametrize("command", [name for name in DOCUMENTED if name.startswith("make ")])
def test_a_target_that_is_told_of_is_there(command: str) -> None:
    told = subprocess.run(
        [*command.split(), "--dry-run", "--always-make"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout


def test_a_benchmark_that_is_told_of_is_there() -> None:
    """They take minutes of a quiet machine, and so are run by hand."""
    assert "benchmarks take minutes of a quiet machine" in LIMITS
    told = [name.removeprefix(BENCH) for name in DOCUMENTED if name.startswith(BENCH)]
    assert told
    for rest in told:
        # `python -m tests.bench NAME ...`, or `python -m tests.bench.NAME N`.
        named = [rest[1:].split()[0]] if rest.startswith(".") else rest.split()
        assert set(named) <= set(BENCHMARKS)
