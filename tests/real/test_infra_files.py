"""The compose file and the units are what Docker Compose and systemd take."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.simulator import ROOT

pytestmark = pytest.mark.real

COMPOSE = ROOT / "infra" / "compose.yaml"
UNITS = sorted((ROOT / "infra" / "systemd").glob("*.service"))
SECRETS = {"POSTGRES_PASSWORD": "p", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s"}


def compose(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = shutil.which("docker-compose")
    assert command, "docker-compose is missing: .ci/run installs it"
    return subprocess.run(
        [command, "--project-directory", str(ROOT / "infra"), "-f", str(COMPOSE), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", **env},
        check=False,
        text=True,
        capture_output=True,
        timeout=120,
    )


def test_the_compose_file_is_whole_and_opens_no_port_to_the_network() -> None:
    told = compose("config", env=SECRETS)
    assert told.returncode == 0, told.stderr
    services = YAML(typ="safe", pure=True).load(told.stdout)["services"]
    assert set(services) == {"postgres", "prefect", "worker", "seaweedfs"}
    for name, service in services.items():
        assert all(json.dumps(port).find("127.0.0.1") >= 0 for port in service.get("ports", []))
        assert "healthcheck" in service or name == "worker"


def test_without_secrets_the_compose_file_says_which_are_missing() -> None:
    told = compose("config", env={})
    assert told.returncode != 0
    assert "set it in infra/.env" in told.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd is missing: .ci/run installs it"
    # Here, the checkout stands where a box has /opt/draftmill.
    text = unit.read_text(encoding="utf-8").replace("/opt/draftmill", str(ROOT))
    placed = tmp_path / unit.name
    placed.write_text(text, encoding="utf-8")
    told = subprocess.run(
        [analyze, "verify", str(placed)], check=False, text=True, capture_output=True, timeout=120
    )
    assert (told.returncode, told.stderr.strip()) == (0, ""), told.stderr
