"""Parts to S3: the store as a run uses it, beside boto3 alone in threads, on the same server.

Enters: nothing. Leaves: megabytes a second of both, in turns over the same SeaweedFS, and their
ratio. The store's way has what a run has: the digest of each part, the condition, its own pool of
threads, an event loop that awaits them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.config import Config
from rich.table import Table

from tasks.storage.store import ArtifactStore, open_store
from tests.bench.report import Report
from tests.support.s3 import start_seaweedfs

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

N_PARTS = 32
PART_BYTES = 3_000_000
AT_ONCE = 16
ROUNDS = 5
MIN_RATIO = 0.8


def report() -> Report:
    """Measure both, a round of each after the other, and take the medians."""
    with tempfile.TemporaryDirectory(prefix="draftmill-bench-storage-") as scratch:
        folder = Path(scratch)
        path = folder / "part"
        path.write_bytes(random.Random(0).randbytes(PART_BYTES))
        with start_seaweedfs(folder / "seaweedfs") as server:
            client = server.client(Config(max_pool_connections=AT_ONCE))
            config = server.config("store", max_connections=AT_ONCE)
            with (
                ThreadPoolExecutor(AT_ONCE) as pool,
                closing(open_store(config, server.credentials)) as store,
            ):
                ways: dict[str, Callable[[int], None]] = {
                    "boto3 alone": lambda turn: _put_alone(client, server.bucket, pool, path, turn),
                    "the store": lambda turn: asyncio.run(_put_by_store(store, path, turn)),
                }
                rates = _take_turns(ways)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["the store"] / medians["boto3 alone"]
    table = Table(
        title=f"Upload of {N_PARTS} parts of {PART_BYTES / 1e6:.0f} MB, {AT_ONCE} at once"
    )
    for column in ("way", "MB/s", "ratio", "budget"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, rate in medians.items():
        shown = (f"{ratio:.2f}", f">= {MIN_RATIO}") if name == "the store" else ("", "")
        table.add_row(name, f"{rate:.0f}", *shown)
    faults = (f"{ratio:.2f} of boto3 alone, below {MIN_RATIO}",) if ratio < MIN_RATIO else ()
    return Report(table=table, figures={"mb_per_second": medians, "ratio": ratio}, faults=faults)


def _take_turns(ways: dict[str, Callable[[int], None]]) -> dict[str, list[float]]:
    """Measure megabytes a second of each way, round after round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, put in ways.items():
            began = time.perf_counter()
            put(turn)
            seconds = time.perf_counter() - began
            if turn:  # the first one opens connections and the server's volumes
                rates[name].append(N_PARTS * PART_BYTES / 1e6 / seconds)
    return rates


def _put_alone(
    client: S3Client, bucket: str, pool: ThreadPoolExecutor, path: Path, turn: int
) -> None:
    def put(number: int) -> None:
        with path.open("rb") as body:
            client.put_object(Bucket=bucket, Key=f"alone/{turn}/{number}", Body=body)

    list(pool.map(put, range(N_PARTS)))


async def _put_by_store(store: ArtifactStore, path: Path, turn: int) -> None:
    keys = (f"data/{turn}/{number}" for number in range(N_PARTS))
    await asyncio.gather(*(store.run(store.create_file, key, path) for key in keys))
