"""A real sglang 0.5.12 on the CPU, under our supervisor: the contract, a run, death and drain.

The simulator is held to the same contract in tests/contract; here the suite runs against what it
stands for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.chat.config import ModelConfig
from tasks.serving.config import ServingConfig
from tasks.serving.process import is_alive
from tasks.serving.supervisor import ensure_fleet_up
from tests.support.audit import audit_run
from tests.support.cli import Cli
from tests.support.fleet import fleet_folder, read, wait_until
from tests.support.sglang_cpu.environment import build_environment
from tests.support.sglang_cpu.fleet import configure_model, configure_servers
from tests.support.sglang_cpu.model import write_tiny_model
from tests.support.simulator import ROOT, request_json

# One server for the whole module, and its death last.
pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CONFIG = """
name: real-server
store: {{uri: store}}
model: {model}
sampling: {{max_tokens: 256, top_k: -1, top_p: 1.0}}
sources:
  birds: {{path: birds.jsonl, mapping: {{turns: turns}}}}
tokens: {{tiny_mask_share: 1.0}}
extraction: {{chunk_size: 6, canary_size: 4, min_answer_tokens: 256}}
gates: {{accept: [empty_answer, empty_thinking, truncation, repetition, tiny_mask, duplicate]}}
serving: {{mode: attach, urls: ["{url}"]}}
"""


@dataclass(frozen=True)
class RealFleet:
    """One real server and how it was asked for."""

    folder: Path
    url: str
    serving: ServingConfig
    model: ModelConfig


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    place = tmp_path_factory.mktemp("sglang")
    model = configure_model(write_tiny_model(place / "model"))
    serving = configure_servers(build_environment(), stall_seconds=60)
    with fleet_folder(place / "fleet") as folder:
        [url] = ensure_fleet_up(folder, serving, model, print, by_hand=True)
        yield RealFleet(folder, url, serving, model)


def test_the_contract_holds_for_the_real_server(fleet: RealFleet) -> None:
    environ = os.environ | {"DRAFTMILL_CONTRACT_URL": fleet.url}
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*suite, "-k", "real", "tests/contract"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    [n_passed] = re.findall(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert int(n_passed) >= 50
    assert "skipped" not in done.stdout


def test_a_whole_run_on_the_real_server_gives_exact_samples(
    fleet: RealFleet, tmp_path: Path
) -> None:
    rows = [{"turns": [f"Name {n + 2} birds.", "Which of them sings?"]} for n in range(5)]
    rows += [{"turns": [f"What is {n} plus 3?"]} for n in range(5)]
    (tmp_path / "birds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "run.yaml"
    model = json.dumps(fleet.model.model_dump(mode="json"))
    config.write_text(CONFIG.format(url=fleet.url, model=model))
    told = Cli(tmp_path / "home", {})("run", str(config), "--json")
    assert told.code == 0, told.err
    assert told.json["simulated"] is False
    audit = audit_run(tmp_path / "store")
    assert audit.statuses["completed"] + audit.statuses["truncated"] == 10
    turns = [turn for outcome in audit.outcomes for turn in outcome["completions"]]
    assert {turn["token_source"] for turn in turns} == {"native"}
    assert told.json["counts"]["n_samples"] == len(turns)
    assert told.json["counts"]["n_supervised_tokens"] > 0


def test_a_killed_scheduler_is_found_and_the_server_started_again(fleet: RealFleet) -> None:
    wait_until(lambda: len(read(fleet.folder).servers[0].family) >= 2)
    before = read(fleet.folder).servers[0]
    workers = [pid for pid, _ in before.family if "sglang::scheduler" in title_of(pid)]
    assert workers, [title_of(pid) for pid, _ in before.family]
    os.kill(workers[0], signal.SIGKILL)
    wait_until(lambda: read(fleet.folder).servers[0].n_restarts == before.n_restarts + 1, 120)
    wait_until(lambda: not any(is_alive(*each) for each in before.family), 60)
    wait_until(lambda: read(fleet.folder).servers[0].status == "ready", 420)
    assert chat(fleet.url, max_tokens=4)[0] == 200


def test_a_server_told_to_end_finishes_what_it_has_begun(fleet: RealFleet) -> None:
    answers: list[tuple[int, Any]] = []
    thread = threading.Thread(
        target=lambda: answers.append(chat(fleet.url, max_tokens=300, ignore_eos=True))
    )
    thread.start()
    wait_until(lambda: 'endpoint="/v1/chat/completions",method="POST"} 1.0' in metrics(fleet.url))
    state = read(fleet.folder).servers[0]
    assert state.pid is not None
    os.kill(state.pid, signal.SIGTERM)
    thread.join(timeout=60)
    [(status, body)] = answers
    assert status == 200
    assert body["usage"]["completion_tokens"] == 300
    wait_until(lambda: not is_alive(state.pid or 0, state.started_at or 0), 60)


def chat(url: str, **fields: Any) -> tuple[int, Any]:
    messages = [{"role": "user", "content": "What is the answer?"}]
    body = {"model": "tiny-random", "messages": messages, "temperature": 1.0, **fields}
    return request_json(url, "POST", "/v1/chat/completions", body)


def metrics(url: str) -> str:
    return str(request_json(url, "GET", "/metrics")[1])


def title_of(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""
