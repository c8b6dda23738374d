"""Whole runs that start at once: a process with the imports in it forks one for each line it reads.

    forks = start_forks(cli.environment)
    run = forks.start(config)          # a process of its own, as `draftmill run` is
    os.kill(run.pid, signal.SIGKILL)
    run.wait()

Enters: configurations. Leaves: processes to kill, their exit codes and what they wrote. It exists
because importing Prefect takes seconds, and a run that is killed twenty times would pay them twenty
times; what runs is `run_expansion` of flows/command_line/launch.py, with the same signals heeded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.simulator import ROOT

# Modules that a run imports where it needs them.
_LATE_IMPORTS = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "fastapi",
    "flows.expand",
    "infra.simulator",
    "pandas",
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.utilities.visualization",
    "pyarrow.pandas_compat",
    "tasks.storage.s3",
)


@dataclass(slots=True)
class ForkedRun:
    """One run: a process that the forking one waits for."""

    pid: int
    log: Path
    _forks: subprocess.Popen[str]
    code: int | None = None

    def wait(self) -> int:
        """Wait for its end; give the exit code, negative for a signal."""
        if self.code is None:
            assert self._forks.stdout is not None
            line = self._forks.stdout.readline()
            assert line, "the forking process has ended"
            self.code = int(line)
        return self.code

    def read_summary(self) -> dict[str, Any]:
        """Read what it gave at its end."""
        return dict(json.loads(_summary_of(self.log).read_text()))

    def is_alive(self) -> bool:
        """Whether it runs still."""
        state = Path(f"/proc/{self.pid}/stat")
        try:
            return state.read_text().rpartition(")")[2].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False


@dataclass(frozen=True, slots=True)
class Forks:
    """The forking process; one run at a time."""

    _process: subprocess.Popen[str]

    def start(self, config: Path, log: Path) -> ForkedRun:
        """Start a run; what it says goes to `log`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(config), str(log)]) + "\n")
        self._process.stdin.flush()
        return ForkedRun(int(self._process.stdout.readline()), log, self._process)


def _summary_of(log: Path) -> Path:
    return log.with_suffix(".json")


@contextmanager
def start_forks(environment: Mapping[str, str]) -> Iterator[Forks]:
    """Start the forking process; at the end it is gone, and so is its run."""
    with start_forking(environment, __name__) as process:
        yield Forks(process)


@contextmanager
def start_forking(
    environment: Mapping[str, str], module: str, *words: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a module that forks for each line it reads; at the end it is gone, with its children."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.communicate()


def _serve() -> None:
    """Fork a run for each line: its pid goes out at once, its exit code when it has ended."""
    import gc
    import signal
    import traceback
    from importlib import import_module

    from flows.command_line.launch import run_expansion
    from flows.configuration.load import load_config
    from flows.process.signals import run_until_signal
    from tasks.serving.endpoint import connect_servers
    from tasks.storage.s3_session import make_session
    from tests.support.generation import load_template

    # What a run reads and makes at its start.
    load_template()
    connect_servers(None)
    make_session("us-east-1", None).client("s3")
    for name in _LATE_IMPORTS:
        import_module(name)
    # What is here is shared by every child, and looked through by no collection of theirs.
    gc.freeze()
    for line in sys.stdin:
        config, log = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 1
            try:
                summary = run_until_signal(
                    lambda: run_expansion(load_config(config).config)  # noqa: B023
                )
                _summary_of(Path(log)).write_text(json.dumps(summary))
                code = 0
            except BaseException:  # noqa: BLE001  # the exit code tells
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)  # noqa: T201
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve()
