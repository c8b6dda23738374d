"""A failpoint at a share of the write steps, in `make test`; all of them: test_failpoints_long."""

from __future__ import annotations

from pathlib import Path

from tests.support.failpoint_report import check_report, run_failpoints


def test_after_a_failed_or_deadly_write_a_rerun_ends_in_the_same_dataset(tmp_path: Path) -> None:
    report = run_failpoints(tmp_path, every=15)
    check_report(report)
    assert len(report) > 8
    # Without these steps nothing was watched.
    assert {"write", "fsync", "link", "unlink", "mkdir", "file-write"} <= set(
        report[0]["first"]["steps"]
    )
    modes = {line["failpoint"]["mode"] for line in report[1:]}
    assert {"fail", "die"} <= modes
