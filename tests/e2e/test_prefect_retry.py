"""A failed run, retried from Prefect, goes through its failed chunk alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.support.audit import audit_run, count_requests
from tests.support.cli import SECONDS, Cli
from tests.support.simulator import ROOT

N_PROMPTS = 110
CONFIG = """
extends: demo
name: retry
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 30, canary_size: 20}
serving: {n_servers: 1, simulator: {time_scale: 0.01, mean_tokens: 60, request_log: requests.jsonl}}
"""


def ask_prefect(url: str, kind: str, **body: Any) -> list[dict[str, Any]]:
    reply = httpx.post(f"{url}/{kind}/filter", json=body, timeout=30)
    reply.raise_for_status()
    return list(reply.json())


def test_flow_run_retry_executes_the_failed_chunk_alone(
    cli: Cli, prefect_url: str, tmp_path: Path
) -> None:
    rows = [{"question": f"What is {n} + {n + 1}? Explain."} for n in range(N_PROMPTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config, log = tmp_path / "run.yaml", tmp_path / "requests.jsonl"
    config.write_text(CONFIG)
    plan_sha = cli("plan", str(config), "--json").json["plan_sha"]
    # A file where chunk 2 keeps its journals: its disk is at fault, and only its.
    spool = cli.home / "spool" / plan_sha[:16]
    spool.mkdir(parents=True)
    (spool / "chunk-000002").write_text("in the way")

    failed = cli("run", str(config))
    assert failed.code == 1, failed.err
    assert "chunk-000002" in failed.err
    parts = {path.name: path.read_bytes() for path in (tmp_path / "store/data").iterdir()}
    assert sorted(parts) == [f"part-00000{n}.jsonl.zst" for n in (0, 1, 3)]
    asked = count_requests(log)
    assert sum(asked.values()) == N_PROMPTS - 30

    (spool / "chunk-000002").unlink()
    (run,) = ask_prefect(
        prefect_url,
        "flow_runs",
        flow_runs={"state": {"type": {"any_": ["FAILED"]}}},
        limit=1,
        sort="START_TIME_DESC",
    )
    command = [str(Path(sys.executable).with_name("prefect")), "flow-run", "retry", run["id"]]
    subprocess.run(
        [*command, "--entrypoint", "flows/expand.py:expand"],
        env=cli.environment,
        cwd=ROOT,
        check=True,
        timeout=SECONDS,
        capture_output=True,
    )
    (after,) = ask_prefect(prefect_url, "flow_runs", flow_runs={"id": {"any_": [run["id"]]}})
    assert after["state"]["type"] == "COMPLETED"
    audit = audit_run(tmp_path / "store")
    assert len(audit.outcomes) == N_PROMPTS
    again = count_requests(log)
    assert sum(again.values()) == N_PROMPTS
    for name, data in parts.items():
        assert (tmp_path / "store/data" / name).read_bytes() == data
