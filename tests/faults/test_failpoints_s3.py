"""A failpoint at every step of publishing to S3: refused, killed before, unheard, killed after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failpoint_report import check_report, run_failpoints
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# The steps of publishing; those of journal and part are the same whatever the store.
PUBLISHING = ("put", "unlink", "rmdir")


def test_killed_or_refused_at_any_step_of_publishing_to_s3_a_rerun_ends_in_the_same_dataset(
    tmp_path: Path, seaweedfs: S3Server
) -> None:
    report = run_failpoints(tmp_path, s3=seaweedfs, only=PUBLISHING)
    check_report(report)
    puts = [line for line in report[1:] if line["failpoint"]["step"] == "put"]
    # The part, its samples, the shard, the manifest: each in four ways.
    assert len(puts) == 16
