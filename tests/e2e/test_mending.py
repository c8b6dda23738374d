"""Failed rows of a finished run are asked anew, beside what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.attached import (
    Listener,
    break_all,
    count_answers,
    listener,
    servers,
    write_config,
)
from tests.support.audit import audit_run
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere
from tests.support.simulator import SimulatedServer

pytestmark = PREFECT_LEAVES_SOCKETS
__all__ = ["listener", "servers"]

N_ROWS = 120


@pytest.mark.real
def test_failures_are_asked_anew_into_a_later_revision(
    run_here: RunHere, tmp_path: Path, listener: Listener, servers: list[SimulatedServer]
) -> None:
    config = write_config(tmp_path, servers, N_ROWS)
    break_all(servers, error_rate=0.25)
    first = run_here(config)
    n_failed = first["counts"]["n_failed"]
    assert n_failed > 0
    assert first["state"] == "CompletedPartial"

    break_all(servers)
    n_answers = count_answers(tmp_path)
    second = run_here(config, flow="retry-failures")
    assert second["state"] == "Completed"
    assert second["manifest"].endswith("r0001.json")
    assert count_answers(tmp_path) - n_answers == n_failed
    audit = audit_run(tmp_path / "store")
    assert audit.statuses["failed"] == 0
    assert len(audit.outcomes) == N_ROWS
    # The first revision stands as it was.
    assert json.loads((tmp_path / "store/_manifest/r0000.json").read_bytes())["retries"] == []

    listener.lines.clear()
    third = run_here(config, flow="retry-failures")
    assert third["manifest"] == second["manifest"]
    assert any("no conversation failed" in line for line in listener.lines)
    assert not any("endpoints" in line for line in listener.lines), "no fleet is asked for"
    assert not (tmp_path / "store/_run/retry-02.json").exists()


@pytest.mark.real
def test_failures_of_a_run_that_never_wrote_its_manifest_are_asked_anew_all_the_same(
    run_here: RunHere, tmp_path: Path, servers: list[SimulatedServer]
) -> None:
    config = write_config(tmp_path, servers, N_ROWS)
    break_all(servers, error_rate=0.25)
    n_failed = run_here(config)["counts"]["n_failed"]
    assert n_failed > 0
    # As a run leaves it that is killed after its last part.
    (tmp_path / "store/_manifest/r0000.json").unlink()
    break_all(servers)
    n_answers = count_answers(tmp_path)
    mended = run_here(config, flow="retry-failures")
    assert (mended["state"], mended["counts"]["n_failed"]) == ("Completed", 0)
    assert count_answers(tmp_path) - n_answers == n_failed
    assert audit_run(tmp_path / "store").statuses["failed"] == 0
    # The same where nothing had failed: it is brought to its end.
    manifests = sorted((tmp_path / "store/_manifest").iterdir())
    for path in manifests:
        path.unlink()
    assert run_here(config, flow="retry-failures")["state"] == "Completed"
    assert not (tmp_path / "store/_run/retry-02.json").exists()
