"""Completion as shells do it: installed into a home, and asked for by the tab key; quick help."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench import help_time

pytestmark = pytest.mark.real

BIN = Path(sys.executable).parent
SECONDS = 60
# The tab key three times; then `echo` before the line, so that it is shown and not run.
TYPED = b"draftmill serv\tins\t--dr\t\x01echo : \r"
COMPLETED = "draftmill servers install --dry-run"
_ANSWERED = re.compile(rb"\n: draftmill[^\r\n]*[\r\n]")


def make_environment(home: Path) -> dict[str, str]:
    """A home with nothing in it but what `completion` puts there."""
    path = f"{BIN}:{os.environ['PATH']}"
    return {"HOME": str(home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8", "PS1": "$ "}


def install(shell: str, home: Path) -> dict[str, str]:
    environment = make_environment(home)
    told = subprocess.run(
        ["draftmill", "completion", shell, "--install"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert str(home) in told.stdout
    assert shutil.which(shell), f"{shell} is missing: .ci/run installs it"
    return environment


def type_into(command: list[str], environment: dict[str, str], typed: bytes) -> str:
    """Run an interactive shell on a terminal, type, and give what it showed until it left."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    deadline = time.monotonic() + SECONDS
    try:
        os.write(leader, typed)
        # The answer is a line of its own; the shell's echo has the word `echo` before it.
        while time.monotonic() < deadline and not _ANSWERED.search(shown):
            if select.select([leader], [], [], 0.2)[0]:
                shown += os.read(leader, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    return shown.decode(errors="replace")


@pytest.mark.parametrize(
    ("shell", "interactive"),
    [("bash", ["bash", "--noprofile", "-i"]), ("zsh", ["zsh", "-i"])],
    ids=["bash", "zsh"],
)
def test_the_tab_key_completes_commands_and_options(
    tmp_path: Path, shell: str, interactive: list[str]
) -> None:
    shown = type_into(interactive, install(shell, tmp_path), TYPED)
    lines = [line.strip() for line in shown.splitlines()]
    assert f": {COMPLETED}" in lines, shown


def test_fish_completes_commands_and_options(tmp_path: Path) -> None:
    environment = install("fish", tmp_path)

    def complete(line: str) -> list[str]:
        told = subprocess.run(
            ["fish", "--command", f"complete --do-complete '{line}'"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        return [each.partition("\t")[0] for each in told.stdout.splitlines()]

    assert complete("draftmill serv") == ["servers"]
    assert complete("draftmill servers install --dr") == ["--dry-run"]


def test_help_takes_no_half_second() -> None:
    """As `python -m tests.bench help_time` measures and judges it, for every command."""
    assert help_time.report().faults == ()
