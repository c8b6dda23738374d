"""A failpoint at every write step: each fails once, is cut short, or ends the process there.

Those of publishing to S3: test_failpoints_s3.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failpoint_report import check_report, run_failpoints

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


def test_after_any_failed_or_deadly_write_a_rerun_ends_in_the_same_dataset(tmp_path: Path) -> None:
    report = run_failpoints(tmp_path)
    check_report(report)
    assert len(report) > 120
