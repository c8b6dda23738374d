"""Reading a run for its report: conversations a CPU second, beside reading its parts alone.

The floor is what any reader pays: zstd, the hash of the object and of its rows. Between machines
only the ratio to it can be compared; memory is that of the larger of two runs less the smaller's.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.completions.measure import measure_generation
from tasks.storage.config import StoreConfig
from tasks.storage.part import iter_rows, read_receipt
from tasks.storage.store import open_store
from tests.bench.apart import Measured, forget_peak, measure_apart, tell
from tests.bench.report import Report, make_table
from tests.support.generation import build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, conclude, publish_outcomes

MIN_RATIO = 0.45
MAX_GROWTH_MB = 16
N_WHOLE_RUN = 193_010
_N_ROWS = (400, 1600)
_REPEATS = 3
_MODULE = "tests.bench.report_pass"
_KEY = "data/part-000000.jsonl.zst"
_NOON = 1_900_000_000.0
_WORDS = ("the", "river", "maps", "bread", "sorting", "primes", "number", "because", "answer")


@dataclass(frozen=True)
class PassCost:
    """What gathering the figures of one part cost."""

    n_rows: int
    mb: float
    rows_a_second: float
    floor_rows_a_second: float
    growth_mb: float

    @property
    def ratio(self) -> float:
        """Speed over that of reading the rows alone."""
        return self.rows_a_second / self.floor_rows_a_second

    @property
    def whole_run_minutes(self) -> float:
        """CPU minutes of the pass over a whole run of such rows."""
        return N_WHOLE_RUN / self.rows_a_second / 60


def measure_pass() -> PassCost:
    """Gather the figures of a small part and of a large one, answers of about 2,700 tokens each."""
    with TemporaryDirectory(prefix="draftmill-bench-") as scratch:
        folders = [Path(scratch) / str(n) for n in _N_ROWS]
        for folder, n_rows in zip(folders, _N_ROWS, strict=True):
            folder.mkdir()
            _publish(folder, n_rows)
        small = measure_apart(_MODULE, "gather", str(folders[0]))
        ours = [measure_apart(_MODULE, "gather", str(folders[1])) for _ in range(_REPEATS)]
        floor = [measure_apart(_MODULE, "read", str(folders[1])) for _ in range(_REPEATS)]
    return PassCost(
        n_rows=_N_ROWS[1],
        mb=ours[0]["n_bytes"] / 1e6,
        rows_a_second=_N_ROWS[1] / min(told["cpu_seconds"] for told in ours),
        floor_rows_a_second=_N_ROWS[1] / min(told["cpu_seconds"] for told in floor),
        growth_mb=min(told["peak_mb"] for told in ours) - small["peak_mb"],
    )


def report() -> Report:
    """Measure, lay out, and judge by the ratio and by the growth of memory."""
    cost = measure_pass()
    row = (
        f"{cost.n_rows:,}",
        f"{cost.mb:.0f}",
        f"{cost.rows_a_second:,.0f}",
        f"{cost.floor_rows_a_second:,.0f}",
        f"{cost.ratio:.2f}",
        f"{MIN_RATIO:.2f}",
        f"{cost.whole_run_minutes:.1f}",
        f"{cost.growth_mb:.1f}",
        f"{MAX_GROWTH_MB}",
    )
    names = (
        "rows", "MB of JSON", "rows/CPU s", "reading alone", "x", "of",
        f"CPU min for {N_WHOLE_RUN:,}", "growth MB", "of",
    )  # fmt: skip
    faults = []
    if cost.ratio < MIN_RATIO:
        faults.append(f"{cost.ratio:.2f} x reading alone, below {MIN_RATIO}")
    if cost.growth_mb > MAX_GROWTH_MB:
        faults.append(f"{cost.growth_mb:.0f} MB more for four times the rows")
    minutes = cost.whole_run_minutes
    figures = {**asdict(cost), "ratio": cost.ratio, "whole_run_cpu_minutes": minutes}
    return Report(make_table("One pass for the report", names, [row]), figures, tuple(faults))


def _publish(folder: Path, n_rows: int) -> None:
    template, draw = load_template(), random.Random(0)
    prompts = [make_prompt(template, ask(f"Question {i}"), row=i) for i in range(n_rows)]
    run = build_run(folder, template, [prompts])
    texts = [(_speak(draw, 1000), f"\n\n{_speak(draw, 180)}") for _ in range(40)]
    outcomes = [
        conclude(
            complete(
                run, prompt, *texts[i % 40], ended_at=_NOON + i / 28, endpoint=f"http://{i % 8}"
            )
        )
        for i, prompt in enumerate(prompts)
    ]
    publish_outcomes(run, 0, outcomes)


def _speak(draw: random.Random, n_words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=n_words))


def _measure(what: str, folder: Path) -> Measured:
    store = open_store(StoreConfig(uri=f"file://{folder}/store", protected=()))
    part = read_receipt(store, _KEY)
    forget_peak()
    began = time.process_time()
    n_bytes = 0
    if what == "gather":
        measure_generation(store, [part], {})
    else:
        for line in iter_rows(store, _KEY):
            n_bytes += len(line)
    seconds = time.process_time() - began
    n_bytes = n_bytes or sum(len(line) for line in iter_rows(store, _KEY))
    return {"n_bytes": n_bytes, "cpu_seconds": seconds}


if __name__ == "__main__":
    WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])
    tell(lambda: _measure(WHAT, FOLDER))
