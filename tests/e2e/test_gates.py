"""Bad answers stop the run at the canary, under a name of their own, and nothing else is opened."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from tasks.errors import StoppedByGate
from tests.support.audit import audit_run
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere

pytestmark = PREFECT_LEAVES_SOCKETS

CONFIG = """
extends: demo
name: gates
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 40, canary_size: 30}
serving: {n_servers: 1, simulator: {time_scale: 0.01, mean_tokens: 60}}
"""


def test_empty_answers_stop_the_run_at_the_canary_until_they_are_accepted(
    run_here: RunHere, prefect_url: str, tmp_path: Path
) -> None:
    rows = [{"question": f"Describe island number {n} in two sentences."} for n in range(80)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG)
    empty = ["serving.simulator.faults={empty_answer_rate: 0.87}"]

    with pytest.raises(StoppedByGate) as stopped:
        run_here(config, empty)
    assert stopped.value.exit_code == 1
    (verdict,) = [line for line in stopped.value.verdicts if line.startswith("empty_answer")]
    assert "threshold 2.0%" in verdict
    assert not (tmp_path / "store/data").exists()
    reply = httpx.post(
        f"{prefect_url}/flow_runs/filter", json={"sort": "START_TIME_DESC", "limit": 1}, timeout=30
    )
    (run,) = reply.json()
    assert (run["state"]["type"], run["state"]["name"]) == ("FAILED", "StoppedByGate")

    # What is on the disk is not asked for again: the same answers, now accepted, are published.
    accepted = ["gates.accept=[empty_answer]", "gates.tiny_mask=1", "gates.duplicate=1"]
    summary = run_here(config, [*empty, *accepted])
    assert summary["counts"]["n_conversations"] == 80
    n_empty = sum(
        not turn["content"].strip()
        for outcome in audit_run(tmp_path / "store").outcomes
        for turn in outcome["completions"]
    )
    assert n_empty > 40
