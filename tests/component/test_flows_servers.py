"""The fleet by hand: up, adopted, refused with the difference, looked at, down; and as flows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from flows.process.speak import OUT
from flows.servers import servers_down, servers_up
from flows.stages.host_fleet import (
    describe_fleet,
    describe_logs,
    end_fleet,
    load_fleet,
    read_fleet,
    read_logs,
    start_fleet,
)
from tasks.errors import ConfigError, UserError
from tasks.settings import Settings
from tests.support.fleet import MODEL, SIMULATED, fleet_folder

CONFIG = """
extends: demo
serving: {n_servers: 1, max_running_requests: 4, simulator: {time_scale: 0.01}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    settings = Settings(home=tmp_path / "home")
    monkeypatch.setattr("flows.stages.host_fleet.read_settings", lambda: settings)
    monkeypatch.setattr("flows.servers.read_settings", lambda: settings)
    with fleet_folder(settings.fleet_dir):
        yield settings.home


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text(CONFIG)
    return str(path)


def show(renderable: object) -> str:
    with OUT.capture() as shown:
        OUT.print(renderable)
    return shown.get()


@pytest.mark.usefixtures("home")
def test_a_fleet_by_hand_goes_up_is_adopted_refused_read_and_goes_down(config: str) -> None:
    with pytest.raises(UserError, match="no fleet has written a log"):
        read_logs(None, 10)
    up = start_fleet(config)
    assert len(up["urls"]) == 1
    assert (up["status"], up["by_hand"], up["n_leases"]) == ("running", True, 0)
    assert start_fleet(config)["servers"] == up["servers"], "the same command adopts it"
    with pytest.raises(UserError, match=r"max_running_requests: 4 -> 5"):
        start_fleet(config, ["serving.max_running_requests=5"])
    assert up["urls"][0] in show(describe_fleet(read_fleet()))
    [log] = read_logs(0, 10)["logs"]
    assert "simulated sglang 0.5.12 on port" in log["text"]
    assert log["path"] in show(describe_logs(read_logs(None, 10)))
    with pytest.raises(UserError, match="server 7 has no log"):
        read_logs(7, 10)
    assert end_fleet()["ended"] is True
    assert end_fleet()["ended"] is False


def test_logs_are_shown_in_the_order_of_the_servers(home: Path) -> None:
    folder = home / "fleet"
    folder.mkdir(parents=True, exist_ok=True)
    for number in (10, 2, 0):
        (folder / f"server-{number}.log").write_text(f"of {number}")
    names = [Path(log["path"]).name for log in read_logs(None, 5)["logs"]]
    assert names == ["server-0.log", "server-2.log", "server-10.log"]


def test_only_the_servers_part_of_a_configuration_is_read_and_its_faults_are_told(
    config: str,
) -> None:
    assert load_fleet(config).serving.n_servers == 1, "it names neither sources nor a store"
    with pytest.raises(ConfigError) as refused:
        load_fleet(config, ["serving.n_servers=0", "serving.hosst=x"])
    assert {issue.path for issue in refused.value.issues} == {
        "serving.n_servers",
        "serving.hosst",
    }
    with pytest.raises(UserError, match="run by others"):
        start_fleet("attach", ["serving.urls=['http://127.0.0.1:1']"])


@pytest.mark.usefixtures("home")
async def test_the_flows_bring_the_fleet_up_leave_it_up_and_end_it() -> None:
    one = SIMULATED.model_copy(update={"n_servers": 1})
    with disable_run_logger():
        [url] = await servers_up.fn(one, MODEL)
        assert read_fleet()["servers"][0]["base_url"] == url
        assert read_fleet()["by_hand"] is True
        assert await servers_down.fn() is True
        assert await servers_down.fn() is False
