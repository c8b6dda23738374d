"""What the supervisor watches for: a server that hangs, workers left behind, logs that grow."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tasks.serving import keeper
from tasks.serving.command import ServerCommand
from tasks.serving.log_file import rotate_log
from tasks.serving.process import ServerProcess, end_group, find_marked, is_alive
from tasks.serving.supervisor import fleet_down
from tests.support.fleet import SIMULATED, fleet_folder, read, stub_config, up, wait_until


@pytest.fixture
def fleet_dir(tmp_path: Path) -> Iterator[Path]:
    with fleet_folder(tmp_path / "fleet") as folder:
        yield folder


@pytest.mark.real
def test_a_server_that_hangs_while_it_says_that_it_is_healthy_is_started_again(
    fleet_dir: Path,
) -> None:
    config = SIMULATED.model_copy(update={"n_servers": 1, "stall_seconds": 2})
    [url] = up(fleet_dir, config)
    before = read(fleet_dir).servers[0]
    body = {"input_ids": [50, 60], "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}
    with ThreadPoolExecutor(1) as pool:
        httpx.post(f"{url}/simulator/faults", json={"hang": True}, timeout=30)
        asked = pool.submit(httpx.post, f"{url}/generate", json=body, timeout=120)
        wait_until(lambda: read(fleet_dir).servers[0].n_restarts == 1)
        # It held one request and said 200 to the very end.
        assert "no token for 2 s with 1 in flight" in read(fleet_dir).servers[0].last_error
        assert isinstance(asked.exception(timeout=60), httpx.TransportError)
    wait_until(lambda: read(fleet_dir).servers[0].status == "ready")
    assert read(fleet_dir).servers[0].pid != before.pid
    assert httpx.post(f"{url}/generate", json=body, timeout=60).status_code == 200


def test_a_worker_that_outlives_its_server_is_ended_by_its_recorded_start(
    fleet_dir: Path, tmp_path: Path
) -> None:
    up(fleet_dir, stub_config(tmp_path, "detached"))
    wait_until(lambda: len(read(fleet_dir).servers[0].family) == 1)
    lost = read(fleet_dir)
    [(worker, started_at)] = lost.servers[0].family
    # In a session of its own and without our mark, as sglang's workers are once they are renamed.
    assert worker not in find_marked(fleet_dir)
    os.kill(lost.supervisor_pid, signal.SIGKILL)
    os.kill(lost.servers[0].pid or 0, signal.SIGKILL)
    assert is_alive(worker, started_at)
    wait_until(lambda: read(fleet_dir).status == "lost")
    assert fleet_down(fleet_dir)
    assert not is_alive(worker, started_at)


def test_a_worker_that_outlives_its_server_is_ended_before_the_restart(
    fleet_dir: Path, tmp_path: Path
) -> None:
    up(fleet_dir, stub_config(tmp_path, "detached", max_restarts=1))
    wait_until(lambda: len(read(fleet_dir).servers[0].family) == 1)
    before = read(fleet_dir).servers[0]
    [(worker, started_at)] = before.family
    os.kill(before.pid or 0, signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).servers[0].n_restarts == 1)
    assert not is_alive(worker, started_at)
    wait_until(lambda: len(read(fleet_dir).servers[0].family) == 1)
    [(second, second_started_at)] = read(fleet_dir).servers[0].family
    assert fleet_down(fleet_dir)
    assert not is_alive(second, second_started_at)


async def test_a_log_that_cannot_be_turned_over_ends_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(log: Path) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device", str(log))

    monkeypatch.setattr(keeper, "rotate_log", fail)
    command = ServerCommand(
        argv=(sys.executable, "-c", "import time; time.sleep(60)"), env={}, base_url="http://x"
    )
    process = ServerProcess.start(command, tmp_path / "server-0.log", fleet_dir=tmp_path)
    try:
        async with httpx.AsyncClient() as client:
            kept = keeper.ServerKeeper(
                command,
                SIMULATED,
                gpus=(),
                log=tmp_path / "server-0.log",
                client=client,
                stop=asyncio.Event(),
                tell=lambda **_: None,
            )
            await kept._do_chores(process)
        assert process.poll() is None
    finally:
        end_group(process.pid, grace_seconds=10)
        process.popen.wait()


def test_a_server_whose_worker_is_killed_ends_and_is_started_again(
    fleet_dir: Path, tmp_path: Path
) -> None:
    up(fleet_dir, stub_config(tmp_path, "parent", max_restarts=1))
    wait_until(lambda: len(read(fleet_dir).servers[0].family) == 1)
    before = read(fleet_dir).servers[0]
    os.kill(before.family[0][0], signal.SIGKILL)
    wait_until(lambda: read(fleet_dir).servers[0].n_restarts == 1)
    wait_until(lambda: read(fleet_dir).servers[0].status == "ready")
    assert read(fleet_dir).servers[0].last_error == "exit status 1"
    assert not is_alive(before.pid or 0, before.started_at or 0)


def test_a_log_is_turned_over_while_the_server_writes_on(tmp_path: Path) -> None:
    log = tmp_path / "server-0.log"
    script = (
        "import sys,time\nfor n in range(200): print(n, 'x' * 99, flush=True); time.sleep(.005)"
    )
    with (
        log.open("ab") as out,
        subprocess.Popen([sys.executable, "-c", script], stdout=out) as writer,
    ):
        wait_until(lambda: log.stat().st_size > 5_000)
        assert not rotate_log(log, most_bytes=1_000_000)
        assert rotate_log(log, most_bytes=4_000)
        assert log.stat().st_size < 4_000
        wait_until(lambda: log.stat().st_size > 5_000)
        assert rotate_log(log, most_bytes=4_000)
        writer.wait(timeout=60)
    kept = [tmp_path / f"server-0.log{end}" for end in (".2", ".1", "")]
    numbers = [int(line.split()[0]) for path in kept for line in path.read_text().splitlines()]
    assert numbers[-1] == 199
    assert len(numbers) > 190
