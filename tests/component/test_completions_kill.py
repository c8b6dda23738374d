"""A generating process killed in mid-chunk costs what was in flight, and no more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.simulator.answers import hash_prompt
from tests.support.generation import count_sent
from tests.support.generation_process import SLOTS, build_mixed_run
from tests.support.simulator import ROOT, start_simulator

N_PROMPTS = 120


def spawn(folder: Path, version: str, urls: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.generation_process", str(folder)]
    command += [str(N_PROMPTS), version, *urls]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def read_journalled_turns(spool_dir: Path) -> set[str]:
    """Name the prompts of all turns that the journals hold whole, as the simulator names them."""
    hashes = set()
    for path in spool_dir.rglob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            entry = json.loads(line)
            turns = entry.get("completions") or ([entry["turn"]] if "turn" in entry else [])
            hashes |= {hash_prompt(turn["prompt_token_ids"]) for turn in turns}
    return hashes


@pytest.mark.real
@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_after_kill_9_a_rerun_misses_none_doubles_none_and_asks_only_for_the_rest(
    tmp_path: Path, version: str
) -> None:
    run = build_mixed_run(tmp_path, N_PROMPTS)
    log = tmp_path / "requests.jsonl"
    flags = {
        "sim_version": version,
        "sim_time_scale": 0.03,
        "sim_mean_tokens": 100,
        "max_running_requests": SLOTS,
        "sim_request_log": log,
    }
    with start_simulator(2, **flags) as servers:
        urls = [server.base_url for server in servers]
        process = spawn(tmp_path, version, urls)
        try:
            deadline = time.monotonic() + 120
            while sum(count_sent(log).values()) < 60:
                assert process.poll() is None, "it ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.01)
        finally:
            process.kill()
            process.communicate()
        assert list(run.store.list("data/")) == []
        journalled = read_journalled_turns(run.spool_dir)
        n_first = sum(count_sent(log).values())
        second = spawn(tmp_path, version, urls)
        key, _ = second.communicate(timeout=200)
        assert second.returncode == 0
    outcomes = run.read_outcomes(key)
    assert [(o.prompt_id, o.sample) for o in outcomes] == run.expect_ids(0)
    assert all(o.failure is None for o in outcomes)
    sent = count_sent(log)
    assert len(journalled) >= 30
    assert {name: sent[name] for name in journalled if sent[name] != 1} == {}
    # At most what was in flight when it was killed, surplus included, was answered twice.
    n_twice = sum(sent.values()) - len(sent)
    assert n_twice <= n_first - len(journalled) <= 2 * (SLOTS + 1)
    for outcome in outcomes:
        assert [c.generation for c in outcome.completions] == list(range(len(outcome.completions)))
        if outcome.status == "completed" and len(outcome.completions) > 1:
            assert len(outcome.completions) == 3
            roles = [m["role"] for m in outcome.completions[2].messages]
            assert roles == ["user", "assistant", "user", "assistant", "user"]
            said = outcome.completions[2].messages[1]["content"]
            assert said == outcome.completions[0].content
