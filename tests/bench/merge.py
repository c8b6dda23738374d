"""Merge: memory and time, with rows of a real length and with as many rows as a real run has.

The base is copied, and its prompts are held against the new ones.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tasks.tokens.config import BaseDatasetConfig, MergeConfig
from tasks.tokens.merge import merge_dataset
from tasks.tokens.parts import write_receipt
from tasks.tokens.record import SamplesReceipt
from tasks.tokens.rows import RowWriter, make_batch
from tests.bench.apart import Measured, forget_peak, measure_apart, tell
from tests.bench.report import Report, make_table
from tests.support.generation import build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, conclude, publish_outcomes

MAX_MB = 2048
# (rows of the base, new rows, tokens a row): the real number of rows, and the real length.
SIZES = ((902_000, 193_000, 40), (8_000, 2_000, 3_000), (24_000, 6_000, 3_000))


@dataclass(frozen=True)
class MergeCost:
    """What merging cost."""

    n_rows: int
    n_tokens: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


def measure_merge(n_base: int, n_new: int, n_tokens: int) -> MergeCost:
    """Merge invented rows of `n_tokens` each."""
    with TemporaryDirectory(prefix="draftmill-bench-") as folder:
        sizes = (str(size) for size in (n_base, n_new, n_tokens))
        told = measure_apart("tests.bench.merge", folder, *sizes)
    return MergeCost(**told)


def report() -> Report:
    """Measure each size, lay out, and judge by memory."""
    costs = [measure_merge(*size) for size in SIZES]
    rows = [
        (
            f"{cost.n_rows:,}",
            f"{cost.n_tokens:,}",
            f"{cost.seconds:.0f}",
            f"{cost.n_tokens / cost.cpu_seconds / 1e6:.1f}",
            f"{cost.peak_mb:.0f}",
            f"{MAX_MB}",
        )
        for cost in costs
    ]
    names = ("rows", "tokens", "seconds", "M tokens/CPU s", "peak MB", "of")
    faults = tuple(
        f"{cost.n_rows} rows: {cost.peak_mb:.0f} MB, past {MAX_MB}"
        for cost in costs
        if cost.peak_mb > MAX_MB
    )
    return Report(make_table("Merge", names, rows), [asdict(cost) for cost in costs], faults)


def _merge(folder: Path, n_base: int, n_new: int, n_tokens: int) -> Measured:
    template = load_template()
    prompt = make_prompt(template, ask("Question"), row=0)
    run = build_run(folder, template, [[prompt]])
    part = publish_outcomes(run, 0, [conclude(complete(run, prompt, "Hm.\n", "\n\nYes."))])
    base = _invent(folder / "base.parquet", "base", n_base, n_tokens)
    path = folder / "samples.parquet"
    receipt = SamplesReceipt(
        data_key=part.key,
        data_sha256=part.sha256,
        key="tokens/0123456789abcdef/part-000000-0123456789ab.parquet",
        sha256="",
        n_bytes=0,
        n_generations=n_new,
        n_samples=n_new,
        n_dropped={},
        n_tokens=n_new * n_tokens,
        n_supervised_tokens=n_new * (n_tokens - n_tokens // 4),
        n_tiny_masks=0,
        finish_reasons={"stop": n_new},
        n_checked=0,
    )
    _invent(path, "new", n_new, n_tokens, receipt)
    stat = run.store.create_file(receipt.key, path)
    receipt = receipt.model_copy(update={"sha256": stat.sha256, "n_bytes": stat.n_bytes})
    # What inventing the rows took is not the merge's.
    forget_peak()
    began, cpu = time.monotonic(), time.process_time()
    settings = MergeConfig(base_prompts="drop")
    merged = merge_dataset(
        run.store, run.plan, [receipt], base, settings, 0, template=template, scratch_dir=folder
    )
    return {
        "n_rows": merged.counts["n_rows"],
        "n_tokens": merged.counts["n_tokens"],
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
    }


def _invent(
    path: Path, name: str, n_rows: int, n_tokens: int, receipt: SamplesReceipt | None = None
) -> BaseDatasetConfig:
    draw = np.random.default_rng(len(name))
    n_prompt = n_tokens // 4
    at_once = max(1, (1 << 18) // n_tokens)
    mask = np.repeat(np.array([0, 1], np.int8), [n_prompt, n_tokens - n_prompt])
    with RowWriter(path) as writer:
        for start in range(0, n_rows, at_once):
            n = min(at_once, n_rows - start)
            writer.write(
                make_batch(
                    ids=[f"{name}-{number}" for number in range(start, start + n)],
                    sources=[name] * n,
                    domains=["general"] * n,
                    flat_ids=draw.integers(0, 4000, n * n_tokens).astype(np.int32),
                    flat_mask=np.tile(mask, n),
                    seq_lens=np.full(n, n_tokens, np.int64),
                    finish_reasons=["stop"] * n,
                    token_sources=["chat"] * n,
                )
            )
        if receipt is not None:
            write_receipt(writer, receipt)
    return BaseDatasetConfig(path=str(path))


if __name__ == "__main__":
    FOLDER, N_BASE, N_NEW, N_TOKENS = Path(sys.argv[1]), *map(int, sys.argv[2:])
    tell(lambda: _merge(FOLDER, N_BASE, N_NEW, N_TOKENS))
