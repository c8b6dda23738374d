"""Measure the client and the dispatcher: `python -m tests.bench [--json FILE]`.

Exits with 1 where a ratio is past its budget, or where the simulators held a run up: such a run
says nothing of the client. Milliseconds stand beside their budget and decide nothing: it was set on
one quiet EPYC core, and between machines only ratios can be compared.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from tests.bench.client_cost import LOADS, TOLERANCE, Cost, measure_costs
from tests.bench.makespan import Makespan, measure_makespans
from tests.bench.occupancy import MIN_OCCUPANCY, Occupancy, measure_occupancy


async def measure() -> tuple[list[Cost], Occupancy]:
    """Run every benchmark, one after the other."""
    costs = [cost for load in LOADS for cost in await measure_costs(load)]
    return costs, await measure_occupancy()


def draw(costs: list[Cost], occupancy: Occupancy, makespans: list[Makespan]) -> list[Table]:
    """Lay the figures out."""
    table = Table(title="Client CPU a request")
    columns = ("load", "path", "ms", "of", "x raw", "of", "budget", "req/s", "sim CPU")
    for name in columns:
        table.add_column(name, justify="left" if name in {"load", "path", "budget"} else "right")
    for cost in costs:
        table.add_row(
            cost.load,
            cost.path,
            f"{cost.cpu_ms:.2f}",
            "" if cost.max_cpu_ms is None else f"{cost.max_cpu_ms:.2f}",
            f"{cost.ratio:.2f}",
            "" if cost.max_ratio is None else f"{cost.max_ratio:.2f}",
            _judge(cost),
            f"{cost.requests_per_second:.0f}",
            f"{cost.simulator_cpu_share:.0%}",
        )
    slots = Table(title=f"Slot occupancy (budget: >= {MIN_OCCUPANCY}, tail included)")
    for name in ("requests", "slots", "makespan s", "busy slot s", "occupancy", "simulator CPU"):
        slots.add_column(name, justify="right")
    slots.add_row(
        str(occupancy.n_requests),
        str(occupancy.n_slots),
        f"{occupancy.makespan_seconds:.1f}",
        f"{occupancy.busy_slot_seconds:.1f}",
        f"{occupancy.occupancy:.3f}",
        f"{occupancy.simulator_cpu_share:.0%}",
    )
    runs = Table(title="Makespan of a whole run on a virtual clock, tail and canary included")
    for name in ("run", "requests", "ideal h", "makespan h", "efficiency", "budget"):
        runs.add_column(name, justify="left" if name == "run" else "right")
    for run in makespans:
        runs.add_row(
            run.name,
            str(run.n_requests),
            f"{run.ideal_hours:.2f}",
            f"{run.makespan_hours:.2f}",
            f"{run.efficiency:.3f}",
            f"{run.min_efficiency:.3f}",
        )
    return [table, slots, runs]


def _judge(cost: Cost) -> str:
    if cost.bottleneck:
        return "void"
    missed = []
    if cost.max_ratio is not None and cost.ratio > cost.max_ratio:
        missed.append("ratio missed" if cost.over_budget else "ratio missed, tolerated")
    if cost.max_cpu_ms is not None and cost.cpu_ms > cost.max_cpu_ms:
        missed.append("ms missed")
    return ", ".join(missed) or ("reached" if cost.max_cpu_ms is not None else "")


def find_faults(costs: list[Cost], occupancy: Occupancy, makespans: list[Makespan]) -> list[str]:
    """Say what makes the run fail."""
    faults = []
    for cost in costs:
        place = f"{cost.load}, {cost.path}"
        if cost.bottleneck:
            faults.append(f"{place}: void, {cost.bottleneck}")
        elif cost.over_budget:
            faults.append(f"{place}: {cost.ratio:.2f} x raw aiohttp, past the budget")
    if occupancy.bottleneck:
        faults.append(f"occupancy: void, {occupancy.bottleneck}")
    elif occupancy.over_budget:
        faults.append(f"occupancy: {occupancy.occupancy:.3f}, below the budget")
    faults += [
        f"{run.name}: {run.efficiency:.3f} of the ideal, below {run.min_efficiency:.3f}"
        for run in makespans
        if run.over_budget
    ]
    return faults


def main() -> int:
    """Run, print the tables (or JSON), and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    costs, occupancy = asyncio.run(measure())
    makespans = measure_makespans()
    faults = find_faults(costs, occupancy, makespans)
    console = Console()
    for table in draw(costs, occupancy, makespans):
        console.print(table)
    console.print(
        f"The exit code is decided by ratios alone (client CPU with {TOLERANCE - 1:.0%} of "
        "tolerance); milliseconds are this machine's, their budget is one quiet EPYC core's."
    )
    for fault in faults:
        console.print(f"[red]{fault}[/red]")
    if arguments.json is not None:
        figures = {
            "client": [cost.to_json() for cost in costs],
            "occupancy": occupancy.to_json(),
            "makespan": [run.to_json() for run in makespans],
            "faults": faults,
        }
        arguments.json.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
