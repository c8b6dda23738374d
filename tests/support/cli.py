"""The command line as a user runs it: a process, its output, its exit code."""

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

COMMAND = [str(Path(sys.executable).with_name("draftmill"))]
SECONDS = 240


@dataclass(frozen=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object."""
        return dict(json.loads(self.out))


@dataclass(frozen=True)
class Cli:
    """Runs `draftmill` with a home of its own."""

    home: Path
    env: Mapping[str, str]

    def __call__(self, *arguments: str, cwd: Path | None = None) -> Told:
        """Run a command to its end."""
        with self.start(*arguments, cwd=cwd) as process:
            out, err = process.communicate(timeout=SECONDS)
            return Told(process.returncode, out, err)

    @contextmanager
    def start(self, *arguments: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
        """Run a command beside the test; it is killed at the end of the block if it still runs."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=self.environment,
            cwd=cwd or ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of a command."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PREFECT_", "DRAFTMILL_", "AWS_"))
        }
        kept.pop("PYTHONDONTWRITEBYTECODE", None)
        return {**kept, "DRAFTMILL_HOME": str(self.home), "COLUMNS": "200", **self.env}
