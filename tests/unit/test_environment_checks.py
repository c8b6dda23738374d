"""Judgements on the box as a whole: ports, disk, limits, files, the servers' Python."""

from __future__ import annotations

import pytest

from tasks.environment.box_facts import PythonFacts
from tasks.environment.checks import describe, exit_code
from tests.support.boxes import judged, make_disk, make_facts, make_profile, make_python


def test_without_a_need_for_gpus_their_checks_are_skipped_with_the_reason() -> None:
    profile = make_profile(
        needs_gpu=False,
        no_gpu_reason="the servers are simulated",
        server_python=None,
        sglang_version=None,
    )
    found = judged(make_facts(nvml=None, kernel_module="", server_python=None), profile)
    judged_here = {"ports", "spool_disk", "spool_file_system", "open_files", "files"}
    skipped = {each.id for each in found.values() if each.status == "skip"}
    assert skipped == set(found) - judged_here
    assert all("the servers are simulated" in found[check].summary for check in skipped)
    assert {found[check].status for check in judged_here} == {"ok"}


def test_the_exit_code_tells_failures_before_warnings() -> None:
    sound = tuple(judged(make_facts()).values())
    warned = tuple(judged(make_facts(shm_gib=0.5)).values())
    failed = tuple(judged(make_facts(shm_gib=0.5, n_open_files_soft=64)).values())
    statuses = [{check.status for check in each} for each in (sound, warned, failed)]
    assert [exit_code(each) for each in statuses] == [0, 2, 1]


def test_a_strangers_port_fails_and_our_own_does_not() -> None:
    facts = make_facts(taken_ports={30001: "pid 7 (python)", 30002: "pid 8 (nginx)"})
    found = judged(facts, make_profile(own_ports=(30001,)))["ports"]
    assert found.status == "fail"
    assert "30002 (pid 8 (nginx))" in found.summary
    assert "30001" not in found.summary
    assert judged(facts, make_profile(own_ports=(30001, 30002)))["ports"].status == "ok"


@pytest.mark.parametrize(
    ("fs_type", "status"),
    [("ext4", "ok"), ("tmpfs", "warn"), ("nfs4", "fail"), ("unknown", "unknown")],
)
def test_the_journals_want_a_local_disk(fs_type: str, status: str) -> None:
    assert (
        judged(make_facts(spool=make_disk(fs_type=fs_type)))["spool_file_system"].status == status
    )


def test_the_journals_want_room_and_the_right_to_write() -> None:
    small = judged(make_facts(spool=make_disk(free_gib=9.5)))["spool_disk"]
    assert small.status == "fail"
    assert "9.5 GiB are free" in small.summary
    closed = judged(make_facts(spool=make_disk(writable=False)))["spool_disk"]
    assert closed.status == "fail"
    assert "cannot be written" in closed.summary


def test_too_few_open_files_are_a_matter_of_ulimit_or_of_the_unit() -> None:
    soft = judged(make_facts(n_open_files_soft=512))["open_files"]
    assert soft.status == "fail"
    assert soft.fix is not None
    assert soft.fix.kind == "env"
    hard = judged(make_facts(n_open_files_soft=512, n_open_files_hard=512))["open_files"]
    assert hard.fix is not None
    assert "LimitNOFILE" in hard.fix.what


def test_missing_files_are_all_named() -> None:
    found = judged(make_facts(missing_files=("/a", "/b")))["files"]
    assert (found.status, found.summary) == ("fail", "missing: /a, /b")


def test_a_servers_python_that_does_not_run_fails() -> None:
    broken = PythonFacts(python="/no/python", returncode=None, error="No such file")
    found = judged(make_facts(server_python=broken))
    assert found["server_python"].status == "fail"
    assert "No such file" in found["server_python"].summary
    assert found["server_packages"].status == "unknown"


def test_another_sglang_fails_and_another_package_warns() -> None:
    other = judged(make_facts(server_python=make_python(sglang="0.5.11")))["server_packages"]
    assert other.status == "fail"
    assert other.summary == "sglang 0.5.11 (not 0.5.12)"
    assert other.fix is not None
    assert other.fix.argv == ("draftmill", "servers", "install", "--sglang", "0.5.12")
    torch = judged(make_facts(server_python=make_python(torch="2.12.0+cu130")))["server_packages"]
    assert torch.status == "warn"
    local = judged(make_facts(server_python=make_python(torch="2.11.0+cu130")))["server_packages"]
    assert local.status == "ok"


def test_a_failing_verdict_tells_its_fix_in_one_line() -> None:
    found = judged(make_facts(server_python=make_python(sglang=None)))["server_packages"]
    assert describe(found) == (
        "server_packages: sglang missing (not 0.5.12) Fix: Install the pinned servers' "
        "environment: `draftmill servers install --sglang 0.5.12`"
    )
