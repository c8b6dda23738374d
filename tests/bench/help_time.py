"""How long help takes, for every command, beside an empty interpreter: `-m tests.bench help_time`.

A ratio of CPU times decides, for milliseconds depend on the machine and on who else is at work: on
the cores where it was set an empty interpreter takes 40 ms, so that the budget is 0.4 s there.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.report import Report, make_table
from tests.support.commands import list_commands

MAX_RATIO = 10.0
_N_TRIES = 3
_DRAFTMILL = str(Path(sys.executable).with_name("draftmill"))


def report() -> Report:
    """Measure each command's help."""
    empty_cpu, empty_wall = measure_process([sys.executable, "-c", "pass"])
    figures = {"an empty interpreter": {"ms": empty_wall, "cpu_ms": empty_cpu, "ratio": 1.0}}
    for words in [(), *(command.words for command in list_commands())]:
        cpu, wall = measure_process([_DRAFTMILL, *words, "--help"], MAX_RATIO * empty_cpu)
        name = " ".join(("draftmill", *words, "--help"))
        figures[name] = {"ms": wall, "cpu_ms": cpu, "ratio": cpu / empty_cpu}
    faults = tuple(
        f"{name}: {figure['ratio']:.1f} x an empty interpreter, budget {MAX_RATIO:g}"
        for name, figure in figures.items()
        if figure["ratio"] > MAX_RATIO
    )
    rows = [
        (name, *(f"{figure[key]:.{n}f}" for key, n in (("ms", 0), ("cpu_ms", 0), ("ratio", 1))))
        for name, figure in figures.items()
    ]
    columns = ("command", "ms", "ms of CPU", "x an empty interpreter")
    return Report(make_table("Help", columns, rows), figures, faults)


def measure_process(command: Sequence[str], enough_cpu: float = 0.0) -> tuple[float, float]:
    """Run a process a few times; give the least milliseconds of CPU and of the clock.

    Once it took no more than `enough_cpu` it is not run again: less would be judged the same.
    """
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    cpu, wall = [], []
    for _ in range(_N_TRIES):
        before, began = _read_cpu(), time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, timeout=60)
        wall.append(1000 * (time.perf_counter() - began))
        cpu.append(1000 * (_read_cpu() - before))
        if cpu[-1] <= enough_cpu:
            break
    return min(cpu), min(wall)


def _read_cpu() -> float:
    """Read the seconds of CPU of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
