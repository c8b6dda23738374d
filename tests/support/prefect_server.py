"""A real Prefect server with a database of its own, ended by its process id.

On SQLite and without background services, as cheap as can be; or on a database that is given, with
its services at work, as in the field.
"""

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

from flows.process.seed import plant_seed
from tests.support.simulator import find_free_port

START_SECONDS = 240.0
# What takes its services a minute takes them seconds: a test waits for each of them.
_SHORT_LOOPS = {
    "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
    "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "2",
    "PREFECT_SERVER_SERVICES_FOREMAN_LOOP_SECONDS": "2",
    "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT1S",
}


@contextmanager
def start_prefect_server(
    folder: Path, *, database: str | None = None, port: int = 0, pages: bool = False
) -> Iterator[str]:
    """Start a server and give the url of its API.

    Args:
        folder: Its home.
        database: The url of its database, which it migrates; its services are then on.
        port: Where it listens; 0: on a free port.
        pages: Whether it serves its pages for people as well.
    """
    port = port or find_free_port()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    kept |= {"PREFECT_HOME": str(folder), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [str(Path(sys.executable).with_name("prefect")), "server", "start"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if pages:
        kept["PREFECT_SERVER_UI_API_URL"] = f"http://127.0.0.1:{port}/api"
    else:
        command.append("--no-ui")
    if database is None:
        plant_seed(folder)
        # Its background services would cost the tests a fifth of a core.
        command.append("--no-services")
    else:
        kept |= {"PREFECT_SERVER_DATABASE_CONNECTION_URL": database, **_SHORT_LOOPS}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=kept, stdout=log, stderr=log, start_new_session=True
        )
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
