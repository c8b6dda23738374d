"""Makes Prefect's embedded API private, patient and quiet, before Prefect is imported.

Enters: the process environment and the settings. Leaves: `PREFECT_*` variables. Where the user
points at a server of their own (PREFECT_API_URL or a profile), nothing is changed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from flows.process.seed import plant_seed
from tasks.serving.process import is_alive, start_time
from tasks.settings import Settings

_EMBEDDED = {
    # A cold start with migrations takes half a minute on a busy box of two cores.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The server's recorder is cut off in mid-write when a short run ends, and says so at length;
    # nothing here reads those rows.
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "DO_NOT_TRACK": "1",
}
_OWNER = "DRAFTMILL_EMBEDDED_OWNER"
_SERVER_APP = "prefect.server.api.server:create_app"
_GRACE_SECONDS = 5.0
_QUIET = {
    # The command line tells errors itself; the run's log still reaches the API.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}

# What a command that begins with a look at the store has found already.
_is_embedded: bool | None = None


def end_lost_servers(prefect_home: Path) -> int:
    """End the embedded servers of a home whose command was killed; returns how many there were.

    Prefect ends its server when the command exits, which a kill -9 leaves out: each would hold its
    quarter of a gigabyte for ever.
    """
    lost = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, ValueError):
            environ = process.environ()
            pid, started_at = environ.get(_OWNER, "").split()
            is_server = _SERVER_APP in process.cmdline()
            if environ.get("PREFECT_HOME") != str(prefect_home) or not is_server:
                continue
            if not is_alive(int(pid), float(started_at)):
                process.terminate()
                lost.append(process)
    for process in psutil.wait_procs(lost, timeout=_GRACE_SECONDS)[1]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    return len(lost)


def prepare_prefect(settings: Settings) -> bool:
    """Set up the environment for Prefect; must run before Prefect is imported.

    Returns:
        True where the embedded API is used, False where the user's own server is.

    Raises:
        RuntimeError: Prefect was imported already, so that the settings would come too late.
    """
    global _is_embedded  # noqa: PLW0603  (the environment is the process's, and so is this)
    if _is_embedded is not None:
        return _is_embedded
    if "prefect" in sys.modules:
        raise RuntimeError("prepare_prefect must run before prefect is imported")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    _is_embedded = "PREFECT_API_URL" not in os.environ and "PREFECT_PROFILE" not in os.environ
    if not _is_embedded:
        return False
    settings.prefect_home.mkdir(parents=True, exist_ok=True, mode=0o700)
    end_lost_servers(settings.prefect_home)
    # The embedded server inherits it, and so is known for ours when this process is no more.
    os.environ[_OWNER] = f"{os.getpid()} {start_time(os.getpid())}"
    os.environ.setdefault("PREFECT_HOME", str(settings.prefect_home))
    plant_seed(settings.prefect_home)
    for name, value in _EMBEDDED.items():
        os.environ.setdefault(name, value)
    return True
