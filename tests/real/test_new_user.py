"""A new user's path, to the letter: from a clean clone to a scheduled run that a worker executes.

The commands are those of README and docs/operate.md, taken from the pages and run by a shell in
their order, `make setup` first, into an environment that is not there yet. Only what a test may not
take is put in another's place: the port, and the interval of the schedule. What uv has fetched once
it takes from its cache, and bytecode is written at first use: of what would be compiled beforehand,
this road loads a third.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support.simulator import ROOT, find_free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

SECONDS = 400
PORT, INTERVAL = "4200", "86400"
CONFIG = """
extends: demo
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 20, canary_size: 20}
serving: {n_servers: 1, simulator: {time_scale: 0.01, mean_tokens: 40}}
"""


@dataclass(frozen=True)
class Shell:
    """A shell in the clone, of a user who has nothing yet."""

    clone: Path
    environment: dict[str, str]
    port: str

    def call(self, command: str) -> str:
        """Run a line with the environment active, as a page writes it."""
        told = subprocess.run(
            self._write(command),
            env=self.environment,
            cwd=self.clone,
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert told.returncode == 0, f"{command}\n{told.stdout}{told.stderr}"
        return told.stdout

    @contextmanager
    def start(self, command: str) -> Iterator[Path]:
        """Run a line beside the block; all that it started ends with it. Gives its output."""
        log = self.clone.parent / f"{command.split()[1]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._write(f"exec {command}"),
                env=self.environment,
                cwd=self.clone,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                yield log
            finally:
                family = [psutil.Process(process.pid)]
                family += family[0].children(recursive=True)
                for one in family:
                    with suppress(psutil.NoSuchProcess):
                        one.terminate()
                for one in psutil.wait_procs(family, timeout=10)[1]:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()
                process.wait()

    def _write(self, command: str) -> list[str]:
        activate = ". .venv/bin/activate && "
        is_there = (self.clone / ".venv" / "bin" / "activate").exists()
        line = (activate if is_there else "") + command.replace(PORT, self.port)
        return ["bash", "-c", line]


def copy_clone(clone: Path) -> None:
    """Copy what a clone would have: all that git keeps, or would keep."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        source = ROOT / name
        if source.is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, clone / name)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    clone = tmp_path / "draftmill"
    clone.mkdir()
    copy_clone(clone)
    theirs = ("PREFECT_", "DRAFTMILL_", "AWS_", "PYTHON", "VIRTUAL_ENV")
    environment = {key: os.environ[key] for key in os.environ if not key.startswith(theirs)}
    port = str(find_free_port())
    environment |= {
        "HOME": str(tmp_path / "home"),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
        "UV_COMPILE_BYTECODE": "0",
        "PREFECT_SERVER_API_PORT": port,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }
    (tmp_path / "home").mkdir()
    return Shell(clone, environment, port)


def read_line(page: str, start: str) -> str:
    """Read the command of a page that begins with some words, as it stands there."""
    text = (ROOT / page).read_text(encoding="utf-8")
    # In a block it ends before a gloss or with the line; within a sentence, with the backtick.
    words = re.escape(start)
    found = re.search(rf"^ {{4,}}({words}.*?)(?: {{2,}}|$)|`({words}[^`]*)`", text, re.M)
    assert found, f"{page} says nothing of `{start}`"
    return " ".join((found[1] or found[2]).split())


def await_value(look: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.5)
    return found


def test_from_a_clean_clone_to_a_scheduled_run_that_a_worker_executes(shell: Shell) -> None:
    shell.call("make setup")
    assert str(shell.clone) in shell.call("python -c 'import flows; print(flows.__file__)'")
    rows = [{"question": f"Describe island number {n}."} for n in range(40)]
    (shell.clone / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (shell.clone / "run.yaml").write_text(CONFIG)
    shell.call(read_line("README.md", "draftmill plan run.yaml"))

    export = read_line("docs/operate.md", "export PREFECT_API_URL=").replace(PORT, shell.port)
    shell.environment["PREFECT_API_URL"] = export.partition("=")[2]
    url = shell.environment["PREFECT_API_URL"]
    with shell.start(read_line("docs/operate.md", "prefect server start")):
        await_value(lambda: is_up(url), "the Prefect server")
        told = shell.call(read_line("docs/operate.md", "make deploy CONFIG=run.yaml"))
        assert "expand/box" in told.splitlines()
        resume = read_line("docs/operate.md", "prefect deployment schedule resume")
        schedule = find_schedule(url, "validate/box")
        assert schedule["active"] is False, "no schedule is active unless somebody says so"
        assert resume.endswith("NAME ID")
        shell.call(resume.replace("NAME ID", f"validate/box {schedule['id']}"))
        assert find_schedule(url, "validate/box")["active"] is True
        listing = read_line("docs/operate.md", "prefect deployment schedule ls")
        assert schedule["id"][:8] in shell.call(listing.replace("NAME", "validate/box"))
        create = read_line("docs/operate.md", "prefect deployment schedule create")
        assert create.endswith(f"expand/box --interval {INTERVAL}")
        shell.call(create.replace(INTERVAL, "20"))
        worker = read_line("docs/operate.md", "prefect worker start --pool gpu-box")
        with shell.start(worker) as log:
            run = await_value(lambda: find_ended(url, "expand"), "a scheduled run's end")
            assert run["state"]["name"] == "Completed", log.read_text()[-3000:]
            assert run["auto_scheduled"] is True
    assert json.loads(shell.call("draftmill verify store --json"))["ok"] is True


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


def find_schedule(url: str, name: str) -> Any:
    """Read the one schedule of a deployment."""
    [schedule] = httpx.get(f"{url}/deployments/name/{name}", timeout=60).json()["schedules"]
    return schedule


def find_ended(url: str, flow: str) -> Any:
    """Find a run of a flow that has ended."""
    wanted = {"flows": {"name": {"any_": [flow]}}}
    runs = httpx.post(f"{url}/flow_runs/filter", json=wanted, timeout=60).json()
    ended = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return next((run for run in runs if run["state"]["type"] in ended), None)
