"""A run that is killed is taken up by the same command; another request is refused."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from flows.dataset.verdict import verify_prefix
from tasks.errors import RequestMismatch
from tests.support.audit import audit_run, count_requests
from tests.support.cli import Cli
from tests.support.in_process import RunHere

N_PROMPTS = 400
N_SLOTS = 2 * 16
CONFIG = """
extends: demo
name: resume
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
extraction: {chunk_size: 60, canary_size: 20}
serving:
  n_servers: 2
  lease_seconds: 120
  simulator: {time_scale: 0.1, mean_tokens: 120, request_log: requests.jsonl}
"""


def write_run(folder: Path, n_prompts: int = N_PROMPTS) -> Path:
    rows = [{"question": f"Tell me {n + 2} facts about lake number {n}."} for n in range(n_prompts)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text(CONFIG)
    return folder / "run.yaml"


def await_requests(log: Path, n_wanted: int) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        if log.exists() and sum(count_requests(log).values()) >= n_wanted:
            return
        time.sleep(0.05)
    raise TimeoutError(f"no {n_wanted} requests within 180 s")


def list_servers(home: Path) -> list[psutil.Process]:
    """The processes that a fleet of this home left running, supervisor included."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join(process.cmdline()) or str(home) in process.environ().get(
                "DRAFTMILL_HOME", ""
            ):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def test_after_kill_9_nothing_is_lost_doubled_or_asked_for_again(cli: Cli, tmp_path: Path) -> None:
    config, log = write_run(tmp_path), tmp_path / "requests.jsonl"
    with cli.start("run", str(config)) as process:
        await_requests(log, N_PROMPTS // 3)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = count_requests(log)
    n_before = sum(before.values())
    assert n_before < N_PROMPTS, "the run ended before it was killed: nothing was shown"

    told = cli("run", str(config), "--json")
    assert told.code == 0, told.err
    assert "adopting the fleet" in told.err or told.json["counts"]["n_prompts"] == N_PROMPTS
    audit = audit_run(tmp_path / "store")
    assert len(audit.outcomes) == N_PROMPTS
    n_asked_again = sum(count_requests(log).values()) - N_PROMPTS
    # Answers that were on their way when the process died, and no others, are had again.
    assert n_asked_again <= N_SLOTS * 1.1 + 2

    deadline = time.monotonic() + 60
    while list_servers(cli.home) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert list_servers(cli.home) == []


def test_a_damaged_part_is_made_again_as_a_revision(cli: Cli, tmp_path: Path) -> None:
    config = write_run(tmp_path)
    quick = ["--set", "serving.simulator.time_scale=0.01"]
    assert cli("run", str(config), *quick).code == 0
    part = tmp_path / "store/data/part-000002.jsonl.zst"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 0xFF
    part.write_bytes(data)

    found = cli("verify", str(tmp_path / "store"), "--json")
    assert found.code == 1
    assert [line.split(":")[0] for line in found.json["problems"]] == ["data/part-000002.jsonl.zst"]

    mended = cli("run", str(config), *quick, "--json")
    assert mended.code == 0, mended.err
    assert mended.json["manifest"].endswith("_manifest/r0001.json")
    verified = cli("verify", str(tmp_path / "store"), "--json")
    assert verified.code == 0, verified.out
    audit = audit_run(tmp_path / "store")
    assert audit.manifest["supersedes"] == {
        "data/part-000002.jsonl.zst": "data/part-000002.r1.jsonl.zst"
    }
    assert part.read_bytes() == bytes(data)


# Prefect's client leaves the sockets of its events to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_the_store_lost_is_made_again_whatever_prefect_remembers(
    run_here: RunHere, tmp_path: Path
) -> None:
    config, store = write_run(tmp_path, 60), tmp_path / "store"
    quick = ["serving.simulator.time_scale=0.01", "serving.n_servers=1"]
    run_here(config, quick)
    shutil.rmtree(store)
    assert run_here(config, quick)["manifest"].endswith("_manifest/r0000.json")
    audit_run(store)

    (store / "dataset/r0000/part-000000.parquet").unlink()
    samples = next(store.glob("tokens/*/part-000001-*.parquet"))
    data = bytearray(samples.read_bytes())
    data[len(data) // 4] ^= 1
    samples.write_bytes(data)
    assert not verify_prefix(str(store), 1.0)["ok"]
    mended = run_here(config, quick)
    assert mended["manifest"].endswith("_manifest/r0001.json")
    assert verify_prefix(str(store), 1.0)["ok"]
    audit_run(store)
    assert samples.read_bytes() == data

    assert run_here(config, quick)["manifest"] == mended["manifest"], "nothing is left to do"
    with pytest.raises(RequestMismatch) as caught:
        run_here(config, [*quick, "sampling.top_k=7", "model.thinking=false"])
    assert "sampling.top_k: 20 there, 7 asked now" in str(caught.value)
    assert "model.thinking: true there, false asked now" in str(caught.value)
    other = run_here(config, [*quick, "merge.rows_per_shard=25"])
    assert other["manifest"].endswith("_manifest/r0002.json")
    assert len(audit_run(store).manifest["shards"]) == 3
