"""A fleet as real processes: up, adopted, refused, hurt, and always gone in the end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tasks.errors import FleetFailed, UserError
from tasks.serving.lease import LEASES_DIR
from tasks.serving.process import find_marked, is_alive, start_time
from tasks.serving.state import STATE_FILE, SUPERVISOR_LOG
from tasks.serving.supervisor import (
    Lease,
    end_lost_fleet,
    ensure_fleet_up,
    fleet_down,
    fleet_status,
)
from tests.support.fleet import MODEL, SIMULATED, fleet_folder, read, stub_config, up, wait_until


@pytest.fixture
def fleet_dir(tmp_path: Path) -> Iterator[Path]:
    with fleet_folder(tmp_path / "fleet") as folder:
        yield folder


def test_a_fleet_outlives_its_caller_is_adopted_and_goes_down(fleet_dir: Path) -> None:
    urls = up(fleet_dir)
    first = read(fleet_dir)
    assert len(set(urls)) == 2
    assert all(httpx.get(f"{url}/health", timeout=30).status_code == 200 for url in urls)
    assert os.getsid(first.supervisor_pid) != os.getsid(0)
    assert psutil.Process(first.supervisor_pid).ppid() != os.getpid()

    lines: list[str] = []
    # How a fleet is watched is no part of what it is.
    equal = SIMULATED.model_copy(update={"max_restarts": 1, "lease_seconds": 60})
    assert ensure_fleet_up(fleet_dir, equal, MODEL, lines.append) == urls
    assert lines[0].startswith("adopting")
    assert read(fleet_dir).servers == first.servers

    assert fleet_down(fleet_dir)
    assert not fleet_down(fleet_dir)
    assert fleet_status(fleet_dir) is None
    for server in first.servers:
        assert server.pid is not None
        assert not psutil.pid_exists(server.pid)


def test_another_fleet_is_refused_with_the_difference_and_the_remedy(fleet_dir: Path) -> None:
    one = SIMULATED.model_copy(update={"n_servers": 1})
    up(fleet_dir, one)
    before = read(fleet_dir)
    with pytest.raises(UserError, match=r"max_running_requests: None -> 4") as refused:
        up(fleet_dir, one.model_copy(update={"max_running_requests": 4}))
    assert "draftmill servers down" in refused.value.remedy
    assert read(fleet_dir) == before


def test_a_killed_server_is_started_again_at_its_url(fleet_dir: Path) -> None:
    urls = up(fleet_dir)
    victim = read(fleet_dir).servers[1]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).servers[1].n_restarts == 1)
    wait_until(lambda: read(fleet_dir).servers[1].status == "ready")
    revived = read(fleet_dir).servers[1]
    assert revived.pid != victim.pid
    assert revived.base_url == urls[1]
    assert "SIGKILL" in revived.last_error
    assert httpx.get(f"{urls[1]}/health", timeout=30).status_code == 200


def test_a_server_without_restarts_left_is_given_up_and_the_other_serves_on(
    fleet_dir: Path,
) -> None:
    config = SIMULATED.model_copy(update={"max_restarts": 0})
    urls = up(fleet_dir, config)
    victim = read(fleet_dir).servers[0]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).servers[0].status == "failed")
    assert up(fleet_dir, config) == urls[1:]


def test_what_a_killed_supervisor_leaves_is_ended_by_the_next_up(fleet_dir: Path) -> None:
    up(fleet_dir)
    lost = read(fleet_dir)
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).status == "lost")
    assert all(is_alive(server.pid or 0, server.started_at or 0) for server in lost.servers)

    up(fleet_dir)
    fresh = read(fleet_dir)
    assert fresh.supervisor_pid != lost.supervisor_pid
    assert not any(is_alive(server.pid or 0, server.started_at or 0) for server in lost.servers)


async def test_what_a_killed_supervisor_leaves_ends_with_the_last_lease(fleet_dir: Path) -> None:
    await asyncio.to_thread(up, fleet_dir)
    assert not end_lost_fleet(fleet_dir), "a fleet with a supervisor is the supervisor's to end"
    lost = read(fleet_dir)
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    await asyncio.to_thread(wait_until, lambda: read(fleet_dir).status == "lost")
    with Lease(fleet_dir, "another run", 60):
        assert not end_lost_fleet(fleet_dir), "another run still needs it"
    assert all(is_alive(server.pid or 0, server.started_at or 0) for server in lost.servers)
    assert await asyncio.to_thread(end_lost_fleet, fleet_dir)
    assert find_marked(fleet_dir) == []
    assert not any(is_alive(server.pid or 0, server.started_at or 0) for server in lost.servers)


def test_a_stranger_with_a_recorded_pid_but_another_start_time_is_left_alone(
    fleet_dir: Path,
) -> None:
    up(fleet_dir)
    lost = read(fleet_dir)
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).status == "lost")
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleep, start_new_session=True) as stranger:
        servers = (lost.servers[0].model_copy(update={"pid": stranger.pid}), lost.servers[1])
        forged = lost.model_copy(update={"servers": servers})
        (fleet_dir / STATE_FILE).write_text(forged.model_dump_json())
        fleet_down(fleet_dir)
        survived = stranger.poll() is None
        stranger.kill()
    assert survived


def test_a_truncated_state_is_mended_by_the_supervisor(fleet_dir: Path) -> None:
    urls = up(fleet_dir)
    path = fleet_dir / STATE_FILE
    path.write_bytes(path.read_bytes()[:100])
    assert up(fleet_dir) == urls


def test_a_state_that_cannot_be_written_does_not_end_the_fleet(fleet_dir: Path) -> None:
    urls = up(fleet_dir)
    path = fleet_dir / STATE_FILE
    path.unlink()
    # A folder in its place fails as a full disk would; the supervisor notices within a tick.
    path.mkdir()
    wait_until(lambda: "cannot be written" in (fleet_dir / SUPERVISOR_LOG).read_text())
    path.rmdir()
    assert up(fleet_dir) == urls


def test_orphans_are_found_without_a_readable_state(fleet_dir: Path) -> None:
    up(fleet_dir)
    lost = read(fleet_dir)
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(lost.supervisor_pid, lost.supervisor_started_at))
    (fleet_dir / STATE_FILE).write_bytes(b'{"spec"')
    assert fleet_down(fleet_dir)
    assert not any(is_alive(server.pid or 0, server.started_at or 0) for server in lost.servers)


async def test_the_fleet_ends_with_its_last_lease(fleet_dir: Path) -> None:
    with Lease(fleet_dir, "first run", 30):
        with Lease(fleet_dir, "second run", 30):
            await asyncio.to_thread(up, fleet_dir)
        await asyncio.sleep(1.0)
        state = read(fleet_dir)
        assert state.status == "running"
    await asyncio.to_thread(wait_until, lambda: read(fleet_dir).status == "stopped")
    assert find_marked(fleet_dir) == []
    await asyncio.to_thread(
        wait_until, lambda: not is_alive(state.supervisor_pid, state.supervisor_started_at)
    )


_HOLDER = """
import asyncio, sys, time
from pathlib import Path
from tasks.serving.supervisor import Lease
async def hold():
    with Lease(Path(sys.argv[1]), "killed run", 5):
        print("held", flush=True)
        await asyncio.sleep(600)
asyncio.run(hold())
"""


@pytest.mark.real
def test_the_lease_of_a_killed_flow_lapses(fleet_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(fleet_dir)], stdout=subprocess.PIPE
    ) as flow:
        assert flow.stdout is not None
        assert flow.stdout.readline() == b"held\n"
        up(fleet_dir)
        [lease] = (fleet_dir / LEASES_DIR).iterdir()
        first = lease.stat().st_mtime_ns
        wait_until(lambda: lease.stat().st_mtime_ns > first)
        assert read(fleet_dir).status == "running"
        flow.kill()
    wait_until(lambda: read(fleet_dir).status == "stopped")
    assert find_marked(fleet_dir) == []


async def test_a_fleet_started_by_hand_stays_without_leases(fleet_dir: Path) -> None:
    config = SIMULATED.model_copy(update={"n_servers": 1})
    with Lease(fleet_dir, "run", 30):
        urls = await asyncio.to_thread(up, fleet_dir, config, by_hand=True)
    await asyncio.sleep(1.5)
    assert read(fleet_dir).status == "running"
    assert await asyncio.to_thread(up, fleet_dir, config) == urls


def test_two_ups_at_once_get_one_fleet(fleet_dir: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: up(fleet_dir), range(2))
    assert first == second
    assert len(find_marked(fleet_dir)) == 2


@pytest.mark.real
def test_a_server_that_ignores_term_is_killed_with_its_workers(
    fleet_dir: Path, tmp_path: Path
) -> None:
    up(fleet_dir, stub_config(tmp_path, "stubborn"))
    pid = read(fleet_dir).servers[0].pid
    assert pid is not None
    group = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    assert len(group) == 2
    fleet_down(fleet_dir)
    # A worker that nobody reaps may stay as a zombie; it runs nothing and holds nothing.
    assert not any(start_time(each) for each in group)


def test_a_taken_port_is_named(fleet_dir: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        config = SIMULATED.model_copy(update={"n_servers": 1, "base_port": port})
        with pytest.raises(FleetFailed, match=f"Port {port} of 127.0.0.1 is taken by pid") as taken:
            up(fleet_dir, config)
    assert "base_port" in taken.value.remedy
    assert fleet_status(fleet_dir) is None


def test_a_server_that_never_gets_healthy_fails_with_its_log(
    fleet_dir: Path, tmp_path: Path
) -> None:
    config = stub_config(tmp_path, "unhealthy", ready_timeout_seconds=2)
    with pytest.raises(FleetFailed, match="not healthy within 2 s") as failed:
        up(fleet_dir, config)
    assert "stub unhealthy loading weights" in failed.value.log_tail
    wait_until(lambda: find_marked(fleet_dir) == [])


@pytest.mark.real
def test_a_server_that_crashes_fails_after_its_budget(fleet_dir: Path, tmp_path: Path) -> None:
    config = stub_config(tmp_path, "crash", n_servers=2, max_restarts=1)
    with pytest.raises(FleetFailed, match=r"exit status 2 \(after 1 restarts\)") as failed:
        up(fleet_dir, config)
    assert failed.value.log_tail.count("no kernel image is available") == 2
    # No half of a fleet is left to hold the cards.
    wait_until(lambda: find_marked(fleet_dir) == [])


def test_a_python_that_does_not_exist_is_named(fleet_dir: Path, tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "python")
    config = stub_config(tmp_path, "healthy", python=missing)
    with pytest.raises(FleetFailed, match=f"cannot run {missing}: No such file"):
        up(fleet_dir, config)
