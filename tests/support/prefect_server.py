"""A real Prefect server on SQLite, with a database of its own, ended by its process id."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.seed import plant_seed
from tests.support.simulator import find_free_port

START_SECONDS = 240.0


@contextmanager
def start_prefect_server(folder: Path) -> Iterator[str]:
    """Start a server and give the url of its API."""
    port = find_free_port()
    plant_seed(folder)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [str(Path(sys.executable).with_name("prefect")), "server", "start"]
    # Its background services would cost the tests a fifth of a core.
    command += ["--host", "127.0.0.1", "--port", str(port), "--no-ui", "--no-services"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}/api"
            _await_health(url, process, folder / "server.log")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(f"the Prefect server did not answer within {START_SECONDS} s")
