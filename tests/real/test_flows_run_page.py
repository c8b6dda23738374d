"""A run's page in Prefect, read back by its keys: what happened is told there, without a log.

One small run over one source against a real Prefect server, then its rerun, and one that a gate
stops; what becomes of each is told by the store alone as well.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.command_line.overview import survey_root
from flows.configuration.load import load_config
from flows.stages.narrow import narrow
from tasks.errors import StoppedByGate
from tests.support.cli import Cli
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere
from tests.support.prompts import write_jsonl

pytestmark = [pytest.mark.real, PREFECT_LEAVES_SOCKETS]

CONFIG = """
extends: demo
name: page
store: {uri: root}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: q, label: kind}}
  yours: {path: rows.jsonl, mapping: {prompt: q}}
extraction: {chunk_size: 8, canary_size: 6, min_chars: 5}
serving: {n_servers: 2, simulator: {time_scale: 0.01, mean_tokens: 60}}
gates: {accept: [duplicate, empty_answer, empty_thinking, repetition, tiny_mask, truncation]}
"""
MOST_TASK_RUNS = 30


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [{"q": f"Describe island {n} briefly.", "kind": "prose"} for n in range(20)]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


class Pages:
    """The artifacts and task runs of the newest flow run."""

    def __init__(self, url: str) -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            newest = {"sort": "START_TIME_DESC", "limit": 1}
            (self.run,) = client.post("/flow_runs/filter", json=newest).json()
            of_run = {"flow_runs": {"id": {"any_": [self.run["id"]]}}}
            found = client.post("/artifacts/filter", json=of_run).json()
            self.n_task_runs = client.post("/task_runs/count", json=of_run).json()
        self.kept = {artifact["key"]: artifact for artifact in found}
        self.n = len(found)

    def rows(self, key: str) -> list[dict[str, Any]]:
        data = self.kept[key]["data"]
        return list(json.loads(data) if isinstance(data, str) else data)


def test_a_person_can_follow_a_run_by_its_artifacts(
    run_here: RunHere, config: Path, prefect_url: str, tmp_path: Path
) -> None:
    summary = run_here(config, source="mine")
    assert summary["uri"] == narrow(load_config(str(config)).config, "mine", None).store.uri
    page = Pages(prefect_url)
    assert {"check", "status", "found"} <= set(page.rows("environment")[0])
    fleet = page.rows("fleet")
    assert [row["verdict"] for row in fleet] == ["admitted", "admitted"]
    assert all("simulated" in row["version"] for row in fleet)
    assert float(page.kept["progress-page"]["data"]) == 100
    progress = {row["what"]: row["value"] for row in page.rows("endpoints-page")}
    assert progress["conversations"] == "20 of 20"
    assert progress["chunks"] == "3 of 3"
    assert sum("answered" in value for value in progress.values()) == 2, "a line an endpoint"
    plot = page.kept["throughput-page"]["data"]
    assert plot.startswith("**")
    assert "data:image/svg+xml;base64," in plot
    assert "tokens/s on average" in plot
    mix = {(row["of"], row["name"]): row for row in page.rows("composition-page")}
    assert mix["source", "`mine`"]["rows after"] == "20"
    assert mix["source", "`mine`"]["share of rows before"] == "-"
    gates = {row["gate"]: row for row in page.rows("gates-page")}
    assert gates["truncation"]["verdict"] == "accepted"
    assert gates["truncation"]["flagged"].endswith(" of 20")
    assert page.rows("failures-page")[0]["kind"] == "none"
    for name in ("report", "canary", "dataset", "manifest"):
        assert f"[{name}]({summary[name]})" in page.kept["places-page"]["data"]
    assert summary["report"] in page.kept["report-page"]["data"]
    assert "canary-page" in page.kept
    assert page.n_task_runs <= MOST_TASK_RUNS
    assert page.n == len(page.kept), "each is changed in place, and not made at every look"

    # The rerun, by the command that the store alone leads to, does nothing and says so.
    cli = Cli(tmp_path / "home", {"PREFECT_API_URL": prefect_url})
    (told,) = cli("status", "--root", str(config), "--json").json["runs"]
    assert (told["stage"], told["uri"]) == ("done", summary["uri"])
    again = cli("run", str(config), "--source", "mine", "--json")
    assert again.code == 0, again.err
    assert again.json["manifest"] == summary["manifest"]
    assert f"mine at {told['revision']}, on {told['uri']}" in again.err
    page = Pages(prefect_url)
    assert {"places-page", "composition-page", "gates-page", "failures-page"} <= set(page.kept)
    assert "throughput-page" not in page.kept, "nothing was generated"
    wrong = cli("run", str(config), "--source", "mien")
    assert (wrong.code, "did you mean 'mine'? the configuration has mine, yours" in wrong.err) == (
        2,
        True,
    )


def test_a_run_that_a_gate_stops_says_by_which_and_the_store_says_it_too(
    run_here: RunHere, config: Path, prefect_url: str
) -> None:
    strict = ["gates.accept=[]", "gates.truncation=0.0", "gates.min_rows=1",
              "serving.simulator.mean_tokens=4000", "sampling.max_tokens=64"]  # fmt: skip
    with pytest.raises(StoppedByGate):
        run_here(config, strict, source="mine")
    page = Pages(prefect_url)
    assert page.run["state"]["name"] == "StoppedByGate"
    told = page.kept["stopped-page"]["data"]
    assert "truncation" in told
    assert "gates.redo" in told
    config.write_text(CONFIG + "sampling: {max_tokens: 64}\n")
    (run,) = survey_root(str(config), tell=False)["runs"]
    assert run["stage"] == "stopped by a gate"
    assert "truncation" in run["last_words"]
    words = shlex.split(run["commands"][0])
    assert words[words.index("--source") + 1] == "mine"
