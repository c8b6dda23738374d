"""Hundreds of chunks go through Prefect and its database cheaply, and nothing is lost with it.

The price is printed: `pytest -m real -s tests/real/test_operate_database.py`.
"""

from __future__ import annotations

import psutil
import pytest

from tests.bench.prefect_cost import measure_prefect_at
from tests.support.audit import audit_run
from tests.support.deployed import SECONDS, await_value
from tests.support.operated import CHUNK_SIZE, Operated, read_parts

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

N_CHUNKS, FAILED = 200, 117
N_ROWS = 100
# Of the client's CPU. Some 30 are usual on a quiet core: what fails here is another order.
MAX_MS_A_CHUNK = 150
# As many as tell the price of one.
N_PRICED = 50


def test_of_hundreds_of_chunks_a_retry_from_prefect_executes_the_failed_one_alone(
    operated: Operated,
) -> None:
    box, hook, root = operated.box, operated.hook, operated.folder / "many"
    n_before = operated.count_answers()
    journals = operated.folder / "home" / "spool"
    known = set(journals.glob("*/chunk-000000"))
    operated.server.set_faults(slow=50)
    operated.employ()
    run_id = box.start("expand/box", config=operated.configure("many", N_CHUNKS, chunk_size=1))
    canary = await_value(
        lambda: next(iter(set(journals.glob("*/chunk-000000")) - known), None),
        "the journals of the canary",
    )
    # A file where a chunk keeps its journals: its disk is at fault, and only its.
    in_the_way = canary.with_name(f"chunk-{FAILED:06}")
    in_the_way.write_text("in the way")
    operated.server.set_faults()
    assert box.await_end(run_id)["type"] == "FAILED"
    seconds = box.read_run(run_id)["total_run_time"]
    parts = read_parts(root)
    names = [f"part-{n:06}.jsonl.zst" for n in range(N_CHUNKS) if n != FAILED]
    assert sorted(parts) == names
    assert operated.count_answers() - n_before == N_CHUNKS - 1
    # Who is told of it is told what to do.
    command = f"prefect flow-run retry {run_id}"
    await_value(lambda: hook.count(subject="failed", body=command) or None, "a notice")
    assert hook.count(subject="failed", body=command) == 1

    in_the_way.unlink()
    box.prefect("flow-run", "retry", run_id)
    assert box.await_end(run_id, after=2)["name"] == "Completed"
    audit = audit_run(root)
    assert len(audit.manifest["parts"]) == N_CHUNKS
    assert len(audit.outcomes) == N_CHUNKS
    assert operated.count_answers() - n_before == N_CHUNKS
    assert parts.items() <= read_parts(root).items()

    cost = measure_prefect_at(box.url, N_PRICED)
    print(  # noqa: T201
        f"\na run of {N_CHUNKS} chunks on PostgreSQL: {seconds:.1f} s in all, "
        f"{1000 * seconds / N_CHUNKS:.0f} ms a chunk; of these Prefect's own: "
        f"{cost.cpu_ms_a_task:.0f} ms of CPU a chunk, {cost.cost_seconds:.1f} s of wall for "
        f"{N_PRICED}"
    )
    assert cost.cpu_ms_a_task < MAX_MS_A_CHUNK


def test_a_wiped_database_in_mid_run_loses_nothing(operated: Operated) -> None:
    box, root = operated.box, operated.folder / "wiped"
    config, n_before = operated.configure("wiped", N_ROWS), operated.count_answers()
    operated.employ()
    lost = box.start("expand/box", config=config)
    orphan = operated.hold_at(root, 1, lost)
    before = read_parts(root)
    assert len(before) < N_ROWS / CHUNK_SIZE
    box.wipe_database()
    assert box.post("deployments/filter", {}) == []

    # The run that Prefect has forgotten ends by itself, at the latest with its next part.
    operated.server.set_faults()
    psutil.wait_procs([orphan], timeout=SECONDS)
    assert not orphan.is_running()

    # The worker goes on, and takes what is deployed anew.
    operated.save_webhook()
    operated.deploy()
    assert box.await_end(box.start("expand/box", config=config))["name"] == "Completed"
    assert before.items() <= read_parts(root).items()
    assert len(audit_run(root).outcomes) == N_ROWS
    # Nothing that was answered is asked again: what had no part yet lay in the journals.
    assert operated.count_answers() - n_before == N_ROWS
