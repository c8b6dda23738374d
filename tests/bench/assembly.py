"""Assembly: tokens a CPU second beside a plain reader, and memory.

The plain reader parses every row into Python lists and writes Parquet as pyarrow does by default:
between machines only the ratio to it can be compared.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.prompts.record import Plan
from tasks.storage.config import StoreConfig
from tasks.storage.part import iter_rows, read_receipt
from tasks.storage.store import ArtifactStore, open_store
from tasks.tokens.assemble import assemble_part
from tasks.tokens.config import TokensConfig
from tests.bench.apart import Measured, forget_peak, measure_apart, tell
from tests.bench.report import Report, make_table
from tests.support.generation import build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, conclude, publish_outcomes

# The plain reader checks nothing; ours holds 1% against its text within the same time.
MIN_RATIO = 1.3
MIN_TOKENS_A_SECOND = 6.5e6
MAX_MB = 350
_REPEATS = 3
_MODULE = "tests.bench.assembly"
_WORDS = ("the", "river", "maps", "bread", "sorting", "primes", "number", "because", "answer")


@dataclass(frozen=True)
class AssemblyCost:
    """What assembling one part cost."""

    n_tokens: int
    tokens_a_second: float
    plain_tokens_a_second: float
    peak_mb: float

    @property
    def ratio(self) -> float:
        """Speed over the plain reader's."""
        return self.tokens_a_second / self.plain_tokens_a_second


def measure_assembly(n_prompts: int = 500) -> AssemblyCost:
    """Assemble one part of invented answers of about 4,500 tokens each."""
    template, draw = load_template(), random.Random(0)
    prompts = [make_prompt(template, ask(f"Question {i}"), row=i) for i in range(n_prompts)]
    with TemporaryDirectory(prefix="draftmill-bench-") as scratch:
        folder = Path(scratch)
        run = build_run(folder, template, [prompts])
        outcomes = [
            conclude(complete(run, prompt, _speak(draw, 1700), f"\n\n{_speak(draw, 300)}"))
            for prompt in prompts
        ]
        publish_outcomes(run, 0, outcomes)
        (folder / "plan.json").write_text(run.plan.model_dump_json())
        ours = [measure_apart(_MODULE, "assemble", str(folder)) for _ in range(_REPEATS)]
        plain = [measure_apart(_MODULE, "plain", str(folder)) for _ in range(_REPEATS)]
    return AssemblyCost(
        n_tokens=ours[0]["n_tokens"],
        tokens_a_second=max(told["n_tokens"] / told["cpu_seconds"] for told in ours),
        plain_tokens_a_second=max(told["n_tokens"] / told["cpu_seconds"] for told in plain),
        peak_mb=max(told["peak_mb"] for told in ours),
    )


def report() -> Report:
    """Measure, lay out, and judge by the ratio and by memory."""
    cost = measure_assembly()
    row = (
        f"{cost.n_tokens:,}",
        f"{cost.tokens_a_second / 1e6:.2f}",
        f"{MIN_TOKENS_A_SECOND / 1e6:.1f}",
        f"{cost.plain_tokens_a_second / 1e6:.2f}",
        f"{cost.ratio:.2f}",
        f"{MIN_RATIO:.2f}",
        f"{cost.peak_mb:.0f}",
        f"{MAX_MB}",
    )
    names = ("tokens", "M/CPU s", "of", "plain M/CPU s", "x plain", "of", "peak MB", "of")
    faults = []
    if cost.ratio < MIN_RATIO:
        faults.append(f"{cost.ratio:.2f} x the plain reader, below {MIN_RATIO}")
    if cost.peak_mb > MAX_MB:
        faults.append(f"{cost.peak_mb:.0f} MB, past {MAX_MB}")
    figures = {**asdict(cost), "ratio": cost.ratio}
    return Report(make_table("Assembly", names, [row]), figures, tuple(faults))


def _speak(draw: random.Random, n_words: int) -> str:
    return " ".join(draw.choices(_WORDS, k=n_words))


def _open(folder: Path) -> tuple[ArtifactStore, Plan]:
    store = open_store(StoreConfig(uri=f"file://{folder}/store", protected=()))
    return store, Plan.model_validate_json((folder / "plan.json").read_text())


def _assemble(folder: Path) -> Measured:
    store, plan = _open(folder)
    template, part = load_template(), read_receipt(store, "data/part-000000.jsonl.zst")
    shutil.rmtree(folder / "store" / "tokens", ignore_errors=True)
    # The first rendering compiles the template: once a process, and not once a part.
    template.decode(template.render(ask("Warm?"), None, thinking=True))
    forget_peak()
    began = time.process_time()
    made = assemble_part(store, plan, plan.chunks[0], part, template, TokensConfig())
    return {"n_tokens": made.n_tokens, "cpu_seconds": time.process_time() - began}


def _read_plainly(folder: Path) -> Measured:
    store, _ = _open(folder)
    began = time.process_time()
    rows = []
    for line in iter_rows(store, "data/part-000000.jsonl.zst"):
        for turn in orjson.loads(line)["completions"]:
            prompt, output = turn["prompt_token_ids"], turn["output_token_ids"]
            mask = [0] * len(prompt) + [1] * len(output)
            rows.append({"input_ids": prompt + output, "loss_mask": mask})
    kinds: dict[str, pa.DataType] = {
        "input_ids": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.int8()),
    }
    schema = pa.schema(kinds)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, folder / "plain.parquet", compression="zstd")
    n_tokens = sum(len(row["input_ids"]) for row in rows)
    return {"n_tokens": n_tokens, "cpu_seconds": time.process_time() - began}


if __name__ == "__main__":
    WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])
    tell(lambda: (_assemble if WHAT == "assemble" else _read_plainly)(FOLDER))
