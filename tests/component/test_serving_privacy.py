"""What a fleet keeps to itself: its key, its files, and the files of others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from tasks.errors import FleetFailed, UserError
from tasks.serving.process import FLEET_MARK
from tasks.serving.state import STATE_FILE
from tasks.serving.supervisor import fleet_down
from tests.support.fleet import SIMULATED, fleet_folder, read, stub_config, up, wait_until


@pytest.fixture
def fleet_dir(tmp_path: Path) -> Iterator[Path]:
    with fleet_folder(tmp_path / "fleet") as folder:
        yield folder


def test_the_api_key_is_on_no_command_line_and_in_no_message(
    fleet_dir: Path, tmp_path: Path
) -> None:
    secret = "canary-secret-0123456789"
    config = stub_config(tmp_path, "healthy")
    up(fleet_dir, config, api_key=SecretStr(secret))
    state = read(fleet_dir)
    server = state.servers[0]
    assert server.pid is not None
    for process in (psutil.Process(server.pid), psutil.Process(state.supervisor_pid)):
        assert secret not in " ".join(process.cmdline())
    assert secret not in str(psutil.Process(server.pid).environ())
    # The server itself was given it, through a private file.
    wait_until(lambda: secret in (fleet_dir / server.log).read_text())
    assert secret not in (fleet_dir / STATE_FILE).read_text()
    with pytest.raises(UserError, match="with_api_key: True -> False"):
        up(fleet_dir, config)
    fleet_down(fleet_dir)
    failing = stub_config(tmp_path, "unhealthy", ready_timeout_seconds=2)
    with pytest.raises(FleetFailed) as failed:
        up(fleet_dir, failing, api_key=SecretStr(secret))
    assert "***" in failed.value.log_tail
    assert secret not in str(failed.value)


def test_files_are_private_whatever_the_umask(fleet_dir: Path) -> None:
    before = os.umask(0)
    try:
        up(fleet_dir, SIMULATED.model_copy(update={"n_servers": 1}))
    finally:
        os.umask(before)
    assert fleet_dir.stat().st_mode & 0o777 == 0o700
    for path in fleet_dir.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600, path.name


def test_a_planted_symlink_is_not_followed(fleet_dir: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    fleet_dir.mkdir()
    (fleet_dir / "server-0.log").symlink_to(precious)
    (fleet_dir / STATE_FILE).symlink_to(precious)
    with pytest.raises(UserError, match="symlink"):
        up(fleet_dir)
    assert precious.read_text() == "keep me"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.symlink_to(tmp_path)
    with pytest.raises(UserError, match="not a folder of your own"):
        up(elsewhere)
    (fleet_dir / STATE_FILE).unlink()


def test_servers_carry_the_mark_of_their_fleet(fleet_dir: Path) -> None:
    up(fleet_dir, SIMULATED.model_copy(update={"n_servers": 1}))
    pid = read(fleet_dir).servers[0].pid
    assert pid is not None
    assert psutil.Process(pid).environ()[FLEET_MARK] == str(fleet_dir)
