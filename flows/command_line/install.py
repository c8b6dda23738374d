"""Builds the servers' own Python environment of pins that are coherent by construction.

Enters: a version of sglang. Leaves: a folder with that environment, and the value for
`serving.python`. Each step leaves a mark when it is done, so that the same command goes on where it
was cut off. The CUDA parts come first, by one requirement with all five extras: torch's own pin
brings the runtime alone, and pip would take the rest at the newest version.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape

from flows.process.speak import ERR
from tasks.environment import compat
from tasks.environment.python_facts import read_python
from tasks.errors import RunError
from tasks.settings import read_settings

MARK_FILE = "draftmill-install.json"
_TAIL_LINES = 15
_REMEDY = "Read the message, and run the same command again: what is done is kept."


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the installation."""

    name: str
    argv: tuple[str, ...]


def install_servers(
    version: compat.SglangVersion, to: Path | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    """Build the environment, or go on with one that was cut off.

    Args:
        version: Of sglang.
        to: Folder of the environment; empty: below DRAFTMILL_HOME.
        dry_run: Only say which commands would run.

    Raises:
        RunError: A command failed, or the packages are not the pinned ones afterwards.
    """
    folder = (to or read_settings().servers_dir / version).absolute()
    pins = Path(str(resources.files("infra") / "sglang" / f"{version}.txt"))
    steps = plan_steps(folder, pins)
    found = {
        "sglang": version,
        "python": str(folder / "bin" / "python"),
        "steps": [{"name": step.name, "argv": list(step.argv)} for step in steps],
        "installed": False,
    }
    if dry_run:
        return found
    run_steps(folder, pins, steps)
    check_pins(folder, compat.PINS[version])
    return found | {"installed": True}


def plan_steps(folder: Path, pins: Path) -> tuple[Step, ...]:
    """Plan the commands: the environment, the CUDA parts, and all the pins."""
    python = str(folder / "bin" / "python")
    cuda = [line for line in _read_pins(pins) if line.startswith("cuda-toolkit")]
    make: tuple[str, ...] = (sys.executable, "-m", "venv", str(folder))
    install: tuple[str, ...] = (python, "-m", "pip", "install", "--disable-pip-version-check")
    if importlib.util.find_spec("uv") is not None:
        # Several times as fast, and it keeps what it has downloaded.
        uv = (sys.executable, "-m", "uv")
        make = (*uv, "venv", "--allow-existing", "--seed", str(folder))
        install = (*uv, "pip", "install", "--python", python)
    return (
        Step("environment", make),
        *((Step("cuda", (*install, *cuda)),) if cuda else ()),
        Step("packages", (*install, "-r", str(pins))),
    )


def run_steps(folder: Path, pins: Path, steps: tuple[Step, ...]) -> None:
    """Run what is not marked as done yet, each step's output as its progress.

    Raises:
        RunError: A command failed; the marks of the earlier ones stay.
    """
    wanted = _read_pins(pins)
    for number, step in enumerate(steps, 1):
        title = f"{number}/{len(steps)} {step.name}"
        done = _read_marks(folder, wanted)
        if step.name in done:
            ERR.print(f"{title}: done already", style="dim", markup=False)
            continue
        ERR.print(f"{title}: {shlex.join(step.argv)}", markup=False, soft_wrap=True)
        _run(step)
        mark = {"pins": wanted, "done": [*done, step.name]}
        new = folder / f".{MARK_FILE}.new"
        new.write_text(json.dumps(mark, indent=1))
        new.replace(folder / MARK_FILE)


def check_pins(folder: Path, pins: dict[str, str]) -> None:
    """Ask the new environment for its versions.

    Raises:
        RunError: It does not run, or does not hold what was pinned.
    """
    found = read_python(str(folder / "bin" / "python"))
    if found.returncode != 0:
        raise RunError(f"the environment does not run: {found.error}", where=str(folder))
    wrong = [
        f"{name} {found.versions.get(name, 'missing')} (not {pin})"
        for name, pin in pins.items()
        if found.versions.get(name, "").split("+")[0] != pin
    ]
    if wrong:
        (folder / MARK_FILE).unlink(missing_ok=True)
        raise RunError(f"not as pinned: {', '.join(wrong)}", where=str(folder), remedy=_REMEDY)


def describe_install(found: dict[str, Any]) -> RenderableType:
    """Show the commands, or what to write into the configuration."""
    if not found["installed"]:
        return escape("\n".join(shlex.join(step["argv"]) for step in found["steps"]))
    return escape(
        f"the servers' environment is there; in the configuration:\n"
        f'  serving: {{python: {found["python"]}, sglang_version: "{found["sglang"]}"}}\n'
        "then `draftmill validate CONFIG --apply`"
    )


def _run(step: Step) -> None:
    tail: list[str] = []
    with subprocess.Popen(
        step.argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            tail = [*tail[-_TAIL_LINES + 1 :], line.rstrip()]
            ERR.print(f"  {line.rstrip()}", style="dim", markup=False, soft_wrap=True)
    if process.returncode != 0:
        raise RunError(
            f"{shlex.join(step.argv)} ended with {process.returncode}:\n" + "\n".join(tail),
            where=step.name,
            remedy=_REMEDY,
        )


def _read_pins(pins: Path) -> list[str]:
    lines = (line.strip() for line in pins.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _read_marks(folder: Path, wanted: list[str]) -> list[str]:
    """Read which steps are done; none are where other pins were installed before."""
    try:
        mark = json.loads((folder / MARK_FILE).read_bytes())
    except (OSError, ValueError):
        return []
    return list(mark["done"]) if mark.get("pins") == wanted else []
