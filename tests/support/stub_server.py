"""A stand-in for `python -m sglang.launch_server` that behaves as badly as it is told to.

    python = write_stub(tmp_path, "stubborn")     # use as ServingConfig.python

The stub listens on the --port of its command line. Modes: healthy; unhealthy (503 for ever);
crash (exit 2 with a message); stubborn (healthy, ignores SIGTERM, and so does its worker);
detached (healthy, with a worker in a session and an environment of its own); gpu (healthy, holds
2 GiB of its card's memory); parent (healthy, ends with 1 when its worker dies, as sglang does).
"""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def write_stub(folder: Path, mode: str) -> str:
    """Write an executable that takes a python's arguments and runs the stub in a mode."""
    path = folder / f"python-{mode}"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__)}" {mode} "$@"\n')
    path.chmod(0o755)
    return str(path)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def follow_worker() -> None:
    """Start a worker, and end as soon as it is gone."""
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def follow() -> None:
        worker.wait()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def hold_memory(n_bytes: int) -> None:
    """Allocate memory of the first visible card through the driver itself."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(n_bytes)) == 0


def main(mode: str, arguments: list[str]) -> int:
    if mode == "crash":
        say("RuntimeError: no kernel image is available")
        return 2
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            while True:
                time.sleep(1)

    if mode == "detached":
        worker = [sys.executable, "-c", "import time; time.sleep(600)"]
        subprocess.Popen(worker, env={}, start_new_session=True)

    if mode == "parent":
        follow_worker()

    if mode == "gpu":
        hold_memory(2 * 2**30)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if mode == "unhealthy" else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

    port = int(arguments[arguments.index("--port") + 1])
    say(f"stub {mode} loading weights with {arguments}")
    if "--config" in arguments:
        say("server_args: " + Path(arguments[arguments.index("--config") + 1]).read_text())
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server,
        contextlib.suppress(KeyboardInterrupt),
    ):
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
