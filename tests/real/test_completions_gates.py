"""Bad answers, at the canary and in mid-run: stopped, mended, and no bad row in the dataset."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from flows.pages.progress import RunProgress
from tasks.errors import MaskError, StoppedByGate
from tests.support.attached import (
    Listener,
    break_all,
    count_answers,
    listener,
    servers,
    write_config,
)
from tests.support.audit import Audit, audit_run
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere
from tests.support.simulator import SimulatedServer

pytestmark = [pytest.mark.real, PREFECT_LEAVES_SOCKETS]
__all__ = ["listener", "servers"]

N_ROWS = 240


def count_empty(audit: Audit) -> int:
    return sum(
        not turn["content"].strip() and turn["finish_reason"] != "length"
        for outcome in audit.outcomes
        for turn in outcome["completions"]
    )


def test_a_fleet_that_answers_empty_in_mid_run_is_stopped_mended_and_leaves_nothing(
    run_here: RunHere, tmp_path: Path, listener: Listener, servers: list[SimulatedServer]
) -> None:
    config = write_config(tmp_path, servers, N_ROWS)
    # A few empty answers are within the threshold, and are published.
    break_all(servers, empty_answer_rate=0.05)

    def go_bad(state: RunProgress) -> bool:
        if state.n_done < 130:
            return False
        break_all(servers, empty_answer_rate=1.0)
        return True

    listener.act = go_bad
    with pytest.raises(StoppedByGate, match=r"gates\.redo=\[empty_answer\]"):
        run_here(config)
    published = sorted(path.name for path in (tmp_path / "store/data").iterdir())
    assert "part-000000.jsonl.zst" in published
    assert len(published) < 4, "what came after the fleet went bad is not published"

    break_all(servers)
    redo = ["gates.redo=[empty_answer]"]
    summary = run_here(config, redo)
    audit = audit_run(tmp_path / "store")
    assert count_empty(audit) == 0
    assert len(audit.outcomes) == N_ROWS
    manifest = audit.manifest
    assert [part["header"]["retry"] for part in manifest["retries"]] == [1]
    n_superseded = sum(gone["n_rows"] for gone in manifest["superseded"].values())
    assert 0 < n_superseded == summary["counts"]["n_retried"]
    flagged = Counter[str]()
    for part in (*manifest["parts"], *manifest["retries"]):
        flagged.update(part["footer"]["gates"])
    for gone in manifest["superseded"].values():
        flagged.subtract(gone["gates"])
    assert flagged["empty_answer"] == 0

    # Nothing is flagged any more: the same command sends nothing and writes nothing.
    n_answers = count_answers(tmp_path)
    again = run_here(config, redo)
    assert count_answers(tmp_path) == n_answers
    assert again["manifest"] == summary["manifest"]


def test_a_canary_without_masks_is_not_published_and_a_sound_one_waits_for_a_person(
    run_here: RunHere, tmp_path: Path, servers: list[SimulatedServer]
) -> None:
    config = write_config(tmp_path, servers, 120)
    data = tmp_path / "store/data"
    # A template that closes the thinking and the answer at once leaves a mask of a few tokens.
    break_all(servers, empty_answer_rate=1.0, empty_thinking_rate=1.0)
    accept_all = ["gates.accept=[empty_answer, empty_thinking, tiny_mask, duplicate, truncation]"]
    with pytest.raises(MaskError, match="60 of 60 samples"):
        run_here(config, accept_all)
    assert not data.exists()
    assert count_answers(tmp_path) == 60, "nothing but the canary was asked"

    break_all(servers)
    pause = ["gates.pause_after_canary=true"]
    waits = run_here(config, pause)
    assert waits["state"] == "AwaitingReview"
    assert waits["command"].endswith("--set gates.pause_after_canary=false")
    assert [path.name for path in data.iterdir()] == ["part-000000.jsonl.zst"]
    page = (tmp_path / "store/report/canary.html").read_text()
    assert "What the whole run may take" in page
    assert "16 slots" in page
    assert count_answers(tmp_path) == 120, "what supervised nothing was asked anew"
    assert run_here(config, pause)["state"] == "AwaitingReview"
    assert count_answers(tmp_path) == 120
