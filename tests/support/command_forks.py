"""Commands that start at once: a process with their imports in it forks one for each line it reads.

    with start_forks(environment, cwd=folder) as call:
        told = call("plan", "run.yaml", "--json")

Enters: the words of a command. Leaves: what it wrote to its own two streams, and its exit code. It
exists because imports are most of what a short command does, and what all of them write with
`--json` can be held against the rules without paying them twenty times. The command itself is
flows/cli.py's `main`, in a process of its own. What the imports write by themselves would come out
among the answers of this process, and end it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.cli import SECONDS, Told
from tests.support.flow_forks import start_forking

Call = Callable[..., Told]
# What commands import when they run; none of them needs Prefect but to run a flow.
_LATE_IMPORTS = (
    "boto3.s3.transfer",
    "flows.command_line.demo",
    "flows.command_line.doctor",
    "flows.command_line.estimate",
    "flows.dataset.export",
    "flows.stages.host_fleet",
    "flows.command_line.install",
    "flows.command_line.launch_tune",
    "flows.command_line.mix",
    "flows.command_line.policy",
    "flows.command_line.preview",
    "flows.command_line.push",
    "flows.pages.report",
    "flows.command_line.show_sample",
    "flows.command_line.sources",
    "flows.command_line.status",
    "flows.dataset.verdict",
    "pandas",
    "tasks.storage.s3",
    "transformers.models.auto.tokenization_auto",
)


@contextmanager
def start_forks(environment: Mapping[str, str], cwd: Path) -> Iterator[Call]:
    """Give a function that runs a command; at the end of the block the forking process is gone."""

    def call(*words: str) -> Told:
        assert process.stdin is not None
        assert process.stdout is not None
        with TemporaryDirectory() as folder:
            process.stdin.write(json.dumps([folder, *words]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the forking process has ended"
            out, err = (Path(folder, name).read_text() for name in ("out", "err"))
            return Told(int(answer), out, err)

    with start_forking(environment, __name__, str(cwd)) as process:
        yield call


def _serve(cwd: str) -> None:
    """Fork a command for each line; its exit code goes out when it has ended."""
    import gc
    import signal
    import traceback

    from flows.cli import main

    for name in _LATE_IMPORTS:
        import_module(name)
    assert "prefect" not in sys.modules, "a command that looks only would wait for Prefect"
    os.chdir(cwd)
    gc.freeze()
    for line in sys.stdin:
        folder, *words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)
            for number, name in ((1, "out"), (2, "err")):
                file = os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(file, number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            sys.argv = ["draftmill", *words]
            # Not by a return: to clear away all that was imported takes a second.
            try:
                main()
            except SystemExit as ended:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(ended.code if isinstance(ended.code, int) else bool(ended.code))
            except BaseException:  # noqa: BLE001  (a traceback is what the test looks for)
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    _serve(sys.argv[1])
