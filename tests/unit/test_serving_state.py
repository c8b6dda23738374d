"""The fleet's private files and the end of a log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.chat.config import ModelConfig
from tasks.errors import UserError
from tasks.serving.command import FleetSpec
from tasks.serving.config import ServingConfig
from tasks.serving.log_file import read_tail
from tasks.serving.process import choose_ports
from tasks.serving.state import (
    STATE_FILE,
    FleetState,
    ServerState,
    is_locked,
    open_fleet_dir,
    open_private,
    read_state,
    try_lock,
    write_private,
    write_state,
)


def make_state() -> FleetState:
    spec = FleetSpec(
        serving=ServingConfig(engine="simulator"), model=ModelConfig(path="m"), with_api_key=False
    )
    server = ServerState(index=0, base_url="http://127.0.0.1:1", log="server-0.log", status="ready")
    return FleetState(
        spec=spec,
        spec_sha256=spec.sha256(),
        supervisor_pid=1,
        supervisor_started_at=1.5,
        status="running",
        servers=(server,),
    )


def test_a_state_comes_back_as_written(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    write_state(tmp_path, make_state())
    assert read_state(tmp_path) == make_state()


def test_a_truncated_or_foreign_state_is_no_state(tmp_path: Path) -> None:
    write_state(tmp_path, make_state())
    whole = (tmp_path / STATE_FILE).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * len(whole), b'{"version": 9}'):
        (tmp_path / STATE_FILE).write_bytes(damaged)
        assert read_state(tmp_path) is None


def test_a_symlink_is_replaced_in_writing_and_refused_in_reading(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    link = tmp_path / STATE_FILE
    link.symlink_to(precious)
    with pytest.raises(UserError, match="symlink"):
        read_state(tmp_path)
    with pytest.raises(UserError, match="symlink"):
        open_private(link, os.O_WRONLY)
    write_private(link, b"state")
    assert precious.read_text() == "keep me"
    assert not link.is_symlink()


def test_an_open_folder_is_made_private(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir(mode=0o777)
    open_fleet_dir(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_lock_is_seen_until_it_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = try_lock(path)
    assert held is not None
    assert is_locked(path)
    assert try_lock(path) is None
    os.close(held)
    assert not is_locked(path)


def test_the_end_of_a_log_is_short_and_safe_to_show(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert read_tail(log) == ""
    log.write_bytes(b"x\n" * 9000 + b"key=hunter22 \x1b[31mred\x1b[0m \xff\xe2\x80\xae\rend\n")
    tail = read_tail(log, secret="hunter22")
    assert tail.splitlines()[-1] == "key=*** [31mred[0m �end"
    assert len(tail.splitlines()) == 25


def test_chosen_ports_differ() -> None:
    assert len(set(choose_ports("127.0.0.1", 16))) == 16
