"""The embedded server of a killed command is ended by the next one, and no other process is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from flows.process.embedded import end_lost_servers
from tasks.serving.process import start_time

APP = "prefect.server.api.server:create_app"


@contextmanager
def stand_in(home: Path, owner: str, argument: str = APP) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that looks like an embedded server of `home`."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(120)", argument],
        env={**os.environ, "PREFECT_HOME": str(home), "DRAFTMILL_EMBEDDED_OWNER": owner},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_only_a_server_whose_command_is_gone_is_ended(tmp_path: Path) -> None:
    ours = f"{os.getpid()} {start_time(os.getpid())}"
    # The number is ours, and the start another's: the command it names is gone.
    gone = f"{os.getpid()} {time.time() - 10_000}"
    with ExitStack() as stack:
        lost, running, elsewhere, stranger, unmarked = (
            stack.enter_context(stand_in(tmp_path, gone)),
            stack.enter_context(stand_in(tmp_path, ours)),
            stack.enter_context(stand_in(tmp_path / "other", gone)),
            stack.enter_context(stand_in(tmp_path, gone, "another program")),
            stack.enter_context(stand_in(tmp_path, "")),
        )
        assert end_lost_servers(tmp_path) == 1
        lost.wait(timeout=30)
        assert [p.poll() for p in (running, elsewhere, stranger, unmarked)] == [None] * 4
        assert end_lost_servers(tmp_path) == 0
