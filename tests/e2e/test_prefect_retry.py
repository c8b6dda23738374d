"""A deployed run that failed, retried from Prefect, goes through its failed chunk alone."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.audit import audit_run, count_requests
from tests.support.cli import SECONDS, Cli
from tests.support.simulator import ROOT

PREFECT = str(Path(sys.executable).with_name("prefect"))
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


class Prefect:
    """A real Prefect: its command line, its API, and a worker of a process work pool."""

    def __init__(self, cli: Cli, url: str) -> None:
        self._env = cli.environment
        self._url = url

    def __call__(self, *arguments: str) -> None:
        told = subprocess.run(
            [PREFECT, *arguments],
            env=self._env,
            cwd=ROOT,
            check=False,
            text=True,
            timeout=SECONDS,
            capture_output=True,
        )
        assert told.returncode == 0, told.stdout + told.stderr

    def post(self, path: str, body: dict[str, Any]) -> Any:
        reply = httpx.post(f"{self._url}/{path}", json=body, timeout=30)
        reply.raise_for_status()
        return reply.json()

    def deploy(self, config: Path) -> None:
        """Do as `make deploy` does."""
        told = subprocess.run(
            [sys.executable, "-m", "deployments.deploy", str(config)],
            env=self._env,
            cwd=ROOT,
            check=False,
            text=True,
            timeout=SECONDS,
            capture_output=True,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        assert "expand/box" in told.stdout.splitlines()

    def run_deployment(self, name: str) -> str:
        deployment = httpx.get(f"{self._url}/deployments/name/{name}", timeout=30).json()
        return str(self.post(f"deployments/{deployment['id']}/create_flow_run", {})["id"])

    def await_end(self, run_id: str, *, after: int) -> str:
        """Wait until the run's latest try, counted from 1, has ended; give its state's type."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            run = httpx.get(f"{self._url}/flow_runs/{run_id}", timeout=30).json()
            ended = run["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
            if ended and run["run_count"] >= after:
                return str(run["state"]["type"])
            time.sleep(0.2)
        raise TimeoutError(f"the flow run did not end within {SECONDS} s")

    @contextmanager
    def worker(self, log: Path) -> Iterator[None]:
        command = [PREFECT, "worker", "start", "--pool", "gpu-box", "--type", "process"]
        with log.open("wb") as out:
            process = subprocess.Popen(command, env=self._env, cwd=ROOT, stdout=out, stderr=out)
            try:
                yield
            finally:
                process.kill()
                process.wait()


@pytest.mark.real
def test_a_retry_from_prefect_executes_the_failed_chunk_alone(
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

    prefect = Prefect(cli, prefect_url)
    prefect.deploy(config)
    run_id = prefect.run_deployment("expand/box")
    with prefect.worker(tmp_path / "worker.log"):
        assert prefect.await_end(run_id, after=1) == "FAILED"
        parts = {path.name: path.read_bytes() for path in (tmp_path / "store/data").iterdir()}
        assert sorted(parts) == [f"part-00000{n}.jsonl.zst" for n in (0, 1, 3)]
        assert sum(count_requests(log).values()) == N_PROMPTS - 30

        (spool / "chunk-000002").unlink()
        prefect("flow-run", "retry", run_id)
        assert prefect.await_end(run_id, after=2) == "COMPLETED"
    audit = audit_run(tmp_path / "store")
    assert len(audit.outcomes) == N_PROMPTS
    assert sum(count_requests(log).values()) == N_PROMPTS
    for name, data in parts.items():
        assert (tmp_path / "store/data" / name).read_bytes() == data
