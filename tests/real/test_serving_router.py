"""sglang's own router in front of servers: one endpoint, whose slots are a setting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tasks.serving.endpoint import probe_endpoint
from tasks.serving.record import Endpoint, Refusal
from tests.support.fleet import MODEL, render_probe, wait_until
from tests.support.simulator import find_free_port, start_simulator

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ROUTER = "sglang-router==0.3.2"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the router."""
    folder = tmp_path_factory.mktemp("router") / "venv"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "-q", "--python", str(python), ROUTER], check=True)
    return python


@contextmanager
def start_router(python: Path, log: Path, workers: list[str]) -> Iterator[str]:
    port = find_free_port()
    command = [str(python), "-m", "sglang_router.launch_router", "--worker-urls", *workers]
    command += ["--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--prometheus-port", str(find_free_port())]
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with (
        log.open("wb") as out,
        subprocess.Popen(command, env=environ, stdout=out, stderr=out) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: is_up(url), 120)
            yield url
        finally:
            process.kill()


def is_up(url: str) -> bool:
    try:
        info = httpx.get(f"{url}/get_model_info", timeout=5)
    except httpx.HTTPError:
        return False
    return info.status_code == 200


async def test_a_router_is_one_endpoint_and_its_slots_are_a_setting(
    python: Path, tmp_path: Path
) -> None:
    probe = render_probe()
    with (
        start_simulator(2, context_length=4096, sim_time_scale=0.01) as servers,
        start_router(python, tmp_path / "log", [each.base_url for each in servers]) as url,
    ):
        async with httpx.AsyncClient(trust_env=False) as client:
            found = await probe_endpoint(client, url, model=MODEL, slots=48, probe=probe)
            assert isinstance(found, Endpoint), found
            assert (found.slots, found.capability) == (48, "native")
            assert found.server_version.endswith("+simulated")
            silent = await probe_endpoint(client, url, model=MODEL, slots=None, probe=probe)
            assert isinstance(silent, Refusal)
            assert "set serving.slots" in silent.reason
        n_asked = [server.stats()["requests"].get("/generate", 0) for server in servers]
    assert sum(n_asked) >= 1
