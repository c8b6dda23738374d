"""A measurement in a process of its own: its CPU time and its largest memory are nobody else's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Measured = dict[str, Any]


def measure_apart(module: str, *arguments: str) -> Measured:
    """Run `python -m MODULE ARGUMENTS` and read what its `tell` printed."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def tell(measure: Callable[[], Measured]) -> None:
    """Measure in this process, and print the figures with the largest memory."""
    told = measure()
    sys.stdout.write(f"{json.dumps({**told, 'peak_mb': read_peak_mb()})}\n")


def forget_peak() -> None:
    """Begin the count of the largest memory anew: what prepared the measurement is not in it."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def read_peak_mb() -> float:
    """Read the largest memory so far, in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
