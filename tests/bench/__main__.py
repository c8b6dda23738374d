"""Measure what has a budget: `python -m tests.bench [NAME ...] [--json FILE]`.

Exits with 1 where a ratio is past its budget, or where the simulators held a run up: such a run
says nothing of the client. Milliseconds stand beside their budget and decide nothing: it was set on
one quiet EPYC core, and between machines only ratios can be compared.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import orjson
from rich.console import Console

from tests.bench.report import Report

# A module here each, whose `report` measures: one after the other, since they share the cores.
BENCHMARKS = (
    "client_cost",
    "occupancy",
    "makespan",
    "memory",
    "prefect_cost",
    "assembly",
    "merge",
    "report_pass",
    "extraction",
    "storage",
    "help_time",
)


def measure(name: str) -> Report:
    """Run one benchmark."""
    report = importlib.import_module(f"tests.bench.{name}").report()
    assert isinstance(report, Report)
    return report


def main() -> int:
    """Run those asked for, print their tables (and write JSON), and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    console = Console()
    reports: dict[str, Report] = {}
    for name in arguments.names or BENCHMARKS:
        reports[name] = measure(name)
        console.print(reports[name].table)
    faults = [f"{name}: {fault}" for name in reports for fault in reports[name].faults]
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    if arguments.json is not None:
        figures = {name: report.figures for name, report in reports.items()}
        document = {**figures, "faults": faults}
        arguments.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
