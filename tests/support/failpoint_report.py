"""What became of runs that failed or died at one step each, and of the rerun after each.

    report = run_failpoints(tmp_path, store=None, every=1)
    check_report(report)

Enters: a folder, and the settings of an S3 store or None for a folder as store. Leaves: one line a
failpoint, from tests/support/failing_runs.py, held against the run that nothing happened to.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.s3 import S3Server
from tests.support.simulator import ROOT, start_simulator

SECONDS = 800
_DEADLY = ("die", "tear", "late-die")
_FAST = {"sim_time_scale": 0.001, "sim_mean_tokens": 40, "max_running_requests": 8}
# How often the disk is asked for while records still come depends on the clock.
_BY_THE_CLOCK = "fdatasync"

Line = dict[str, Any]


def run_failpoints(
    folder: Path,
    *,
    s3: S3Server | None = None,
    only: Sequence[str] | None = None,
    every: int = 1,
) -> list[Line]:
    """Run without a failpoint, then with each `every`-th one of the steps in `only` (or of all)."""
    spec: dict[str, Any] = {"folder": str(folder / "runs"), "only": only, "every": every}
    if s3 is None:
        spec |= {"store": None}
    else:
        store = s3.config(f"failpoints/{folder.name}").model_dump(mode="json")
        spec |= {"store": store, "access_key": s3.access_key, "secret_key": s3.secret_key}
    with start_simulator(2, **_FAST) as servers:
        spec["urls"] = [server.base_url for server in servers]
        (folder / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "tests.support.failing_runs", str(folder / "spec.json")]
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_report(report: Sequence[Line]) -> None:
    """Hold every rerun against the run that nothing happened to."""
    whole, *lines = report
    expected = whole["first"]["result"]
    assert expected["problems"] == expected["left"] == []
    assert whole["rerun"]["result"] == expected
    for line in lines:
        point, first, rerun = line["failpoint"], line["first"], line["rerun"]
        if point["mode"] in _DEADLY and point["step"] != _BY_THE_CLOCK:
            assert first["code"] == -signal.SIGKILL, line
        elif point["mode"] not in _DEADLY:
            assert first["code"] == 0, line
            assert first["reached"] or point["step"] == _BY_THE_CLOCK, line
        assert rerun["code"] == 0, line
        assert rerun["error"] is None, line
        # The same rows and shards, sound, and no journal or half-written part left.
        assert rerun["result"] == expected, line
