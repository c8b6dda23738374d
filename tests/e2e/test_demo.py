"""The demo walks the whole road on the embedded Prefect, and says what is simulated."""

from __future__ import annotations

from pathlib import Path

from tests.support.audit import audit_run
from tests.support.cli import Cli


def test_the_demo_ends_with_a_whole_dataset_and_no_noise(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", {})
    out = tmp_path / "demo"
    told = cli("demo", "--out", str(out), cwd=tmp_path)
    assert told.code == 0, told.err
    assert "SIMULATED" in told.out
    for noise in ("Traceback", "Warning", "ERROR", "Error"):
        assert noise not in told.out + told.err
    for place in ("dataset/r0000", "_manifest/r0000.json", "report/r0000/index.html"):
        assert str(out / "store" / place) in told.out
        assert (out / "store" / place).exists()

    audit = audit_run(out / "store", out / "input/base.jsonl")
    counts = audit.manifest["counts"]
    assert counts["n_source_rows"] >= 350
    assert counts["n_rejected"] > 0
    assert counts["n_duplicates"] > 0
    assert len(audit.outcomes) == counts["n_prompts"] >= 300
    kinds = {row["source"] for row in audit.dataset}
    assert len(kinds) == 7, kinds
    assert any(outcome["completions"][0]["tool_calls"] for outcome in audit.outcomes)
    # A tool loop: the recorded result was passed back, and the target went on.
    assert any(
        message["role"] == "tool"
        for outcome in audit.outcomes
        for turn in outcome["completions"]
        for message in turn["messages"]
    )
    before, after = (
        audit.manifest["composition"][when]["by_domain"]["code"]["n_rows"]
        / sum(t["n_rows"] for t in audit.manifest["composition"][when]["by_domain"].values())
        for when in ("before", "after")
    )
    assert round(before, 2) == 0.77
    assert after < before

    verified = cli("verify", str(out / "store"), "--json")
    assert verified.code == 0, verified.out
