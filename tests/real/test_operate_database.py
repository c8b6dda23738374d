"""Hundreds of chunks go through Prefect and its database cheaply, and nothing is lost with it.

The price is printed: `pytest -m real -s tests/real/test_operate_database.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.load import load_config
from tests.bench.prefect_cost import measure_prefect_at
from tests.support.attached import count_answers
from tests.support.audit import audit_run
from tests.support.deployed import (
    SECONDS,
    Operations,
    await_value,
    start_operations,
    write_config,
    write_rows,
)
from tests.support.simulator import SimulatedServer, start_simulator

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

N_CHUNKS, CHUNK_SIZE = 200, 2
N_ROWS, N_A_PART = 100, 20
# Of the client's CPU. Some 12 are usual on a quiet core: what fails here is another order.
MAX_MS_A_CHUNK = 150


@dataclass(frozen=True)
class Field:
    """A simulated server, and Draftmill deployed upon it."""

    box: Operations
    server: SimulatedServer
    folder: Path

    def write(self, name: str, n_rows: int, chunk_size: int) -> Path:
        """Write rows, and a configuration with a store of its own."""
        rows = self.folder / f"{name}.jsonl"
        rows.write_bytes(write_rows(0, n_rows))
        source = f"{{path: {rows}, mapping: {{prompt: question}}}}"
        path, root = self.folder / f"{name}.yaml", self.folder / name
        return write_config(path, root, source, [self.server], chunk_size)


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    folder = tmp_path_factory.mktemp("operate")
    log = folder / "requests.jsonl"
    flags = {"max_running_requests": 32, "sim_time_scale": 0.01, "sim_mean_tokens": 60}
    with (
        start_simulator(1, context_length=4096, sim_request_log=log, **flags) as servers,
        start_operations(folder) as box,
    ):
        field = Field(box, servers[0], folder)
        box.deploy(field.write("wiped", N_ROWS, N_A_PART))
        yield field


def read_config(path: Path) -> dict[str, Any]:
    return load_config(str(path)).config.model_dump(mode="json")


def test_hundreds_of_chunks_pass_at_a_small_price(field: Field) -> None:
    box, n_before = field.box, count_answers(field.folder)
    many = read_config(field.write("many", N_CHUNKS * CHUNK_SIZE, CHUNK_SIZE))
    with box.worker():
        run_id = box.start("expand/box", config=many)
        assert box.await_end(run_id)["name"] == "Completed"
    seconds = box.read_run(run_id)["total_run_time"]
    audit = audit_run(field.folder / "many")
    assert len(audit.manifest["parts"]) == N_CHUNKS
    assert count_answers(field.folder) - n_before == N_CHUNKS * CHUNK_SIZE

    cost = measure_prefect_at(box.url, N_CHUNKS)
    print(  # noqa: T201
        f"\na run of {N_CHUNKS} chunks on PostgreSQL: {seconds:.1f} s in all, "
        f"{1000 * seconds / N_CHUNKS:.0f} ms a chunk; of these Prefect's own: "
        f"{cost.cpu_ms_a_task:.0f} ms of CPU a chunk, {cost.cost_seconds:.1f} s of wall in all"
    )
    assert cost.cpu_ms_a_task < MAX_MS_A_CHUNK


def test_a_wiped_database_in_mid_run_loses_nothing(field: Field) -> None:
    box, root = field.box, field.folder / "wiped"
    n_before = count_answers(field.folder)
    with box.worker():
        field.server.set_faults(slow=50)
        lost = box.start("expand/box")
        part = root / "data/part-000001.jsonl.zst"
        await_value(lambda: part.exists() or None, "the first part after the canary")
        field.server.set_faults(hang=True)
        orphan = box.await_process(lost)
        before = {path: path.read_bytes() for path in (root / "data").glob("*.zst")}
        written = {path: path.stat().st_mtime_ns for path in before}
        assert len(before) < N_ROWS / N_A_PART
        box.wipe_database()
        assert box.post("deployments/filter", {}) == []

        # The run that Prefect has forgotten ends by itself, at the latest with its next part.
        field.server.set_faults()
        psutil.wait_procs([orphan], timeout=SECONDS)
        assert not orphan.is_running()

        # The worker goes on, and takes what is deployed anew.
        box.deploy(field.folder / "wiped.yaml")
        assert box.await_end(box.start("expand/box"))["name"] == "Completed"
    assert before == {path: path.read_bytes() for path in before}
    assert written == {path: path.stat().st_mtime_ns for path in before}
    assert len(audit_run(root).outcomes) == N_ROWS
    # Nothing that was answered is asked again: what had no part yet lay in the journals.
    assert count_answers(field.folder) - n_before == N_ROWS
