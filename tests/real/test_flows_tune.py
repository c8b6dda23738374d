"""The tuning as a whole: candidates as fleets, failures alone, evidence and profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from flows.configuration.load import load_config
from flows.tune import tune
from tasks.errors import UserError
from tasks.serving.process import find_marked
from tasks.serving.supervisor import ensure_fleet_up, fleet_down
from tasks.settings import Settings
from tests.support.fleet import MODEL, SIMULATED
from tests.support.in_process import PREFECT_LEAVES_SOCKETS
from tests.support.stub_server import write_stub

pytestmark = [pytest.mark.real, pytest.mark.timeout(400), PREFECT_LEAVES_SOCKETS]

CONFIG = """
extends: demo
name: small
store: {{uri: store}}
sources: {{rows: {{path: rows.jsonl, mapping: {{prompt: q}}}}}}
serving: {{n_servers: 3, base_port: 0, simulator: {{time_scale: 1.0, mean_tokens: 100}}}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("flows.tune.read_settings", lambda: Settings(home=tmp_path / "home"))
    return tmp_path / "home"


def write_config(folder: Path) -> Path:
    rows = [{"q": f"What is {n} plus 4?"} for n in range(30)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = folder / "run.yaml"
    path.write_text(CONFIG.format())
    return path


def list_left(home: Path) -> list[int]:
    """List the process groups of candidates that are still there."""
    folders = list(home.glob("tune-*"))
    assert len(folders) == 3
    return [pid for folder in folders for pid in find_marked(folder)]


def check_plot(path: Path) -> None:
    """It is whole XML, and has a bar a candidate."""
    plot = ElementTree.fromstring(path.read_text())  # noqa: S314  # ours
    assert len(plot.findall("{http://www.w3.org/2000/svg}rect")) == 4


async def run_tuning(path: Path, out: Path, *sets: str) -> dict[str, Any]:
    config = load_config(str(path), sets).config
    return dict(await tune(config, 2, str(out)))


@pytest.mark.usefixtures("prefect_api")
async def test_the_winner_becomes_a_profile_with_the_evidence_in_it(
    home: Path, tmp_path: Path
) -> None:
    path, out = write_config(tmp_path), tmp_path / "tuned.yaml"
    found = await run_tuning(path, out)
    speeds = [result["tokens_per_second"] for result in found["results"]]
    assert len(speeds) == 3
    assert speeds == sorted(speeds, reverse=True)
    # More requests at once: a longer step, and more tokens in it.
    assert found["winner"] == "24 slots"
    tuned = load_config(str(out)).config
    assert tuned.serving.max_running_requests == 24
    assert tuned.serving.n_servers == 3
    assert tuned.serving.outlook.server_tokens_per_second == pytest.approx(speeds[0], abs=0.1)
    before = load_config(str(path)).config
    assert tuned.asked() == before.asked(), "the run's answers are not touched"
    text = out.read_text()
    assert all(f"candidate {name}" in text for name in ("24 slots", "as configured", "8 slots"))
    check_plot(Path(found["plot"]))
    assert list_left(home) == []
    with pytest.raises(UserError, match="is there already"):
        await run_tuning(path, out)


@pytest.mark.usefixtures("prefect_api", "home")
async def test_candidates_that_cannot_serve_fail_alone_and_are_told(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    python = json.dumps(write_stub(tmp_path, "crash"))
    sets = ("serving.engine=sglang", f"serving.python={python}")
    with pytest.raises(Exception, match="No candidate served") as failed:
        await run_tuning(path, tmp_path / "tuned.yaml", *sets)
    assert "no kernel image is available" in str(failed.value)
    assert not (tmp_path / "tuned.yaml").exists()


async def test_cards_of_a_running_fleet_are_not_measured(home: Path, tmp_path: Path) -> None:
    one = SIMULATED.model_copy(update={"n_servers": 1})
    config = load_config(str(write_config(tmp_path))).config
    ensure_fleet_up(home / "fleet", one, MODEL, lambda line: None)
    try:
        with pytest.raises(UserError, match="A fleet runs on this host"):
            await tune.fn(config, 1, str(tmp_path / "tuned.yaml"))
    finally:
        fleet_down(home / "fleet")
