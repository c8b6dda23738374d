"""Simulated servers as real processes, for tests and benchmarks.

    with start_simulator(2, sim_time_scale=0.01, max_running_requests=8) as servers:
        post(servers[0].base_url + "/v1/chat/completions", ...)

Keyword arguments become flags (`sim_faults={...}` is written as JSON, `enable_metrics=True` becomes
a bare flag). Every server started is killed by its pid at the end, whatever happened to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MODEL_DIR = ROOT / "infra" / "simulator" / "model"
START_SECONDS = 60.0
_PORTS = range(12_000, 32_000)


def find_free_port() -> int:
    """Return a port that was free on 127.0.0.1 a moment ago.

    Below those that the system gives to outgoing connections: one of them would be taken sooner or
    later by a client while its server is away, and the server could not come back.
    """
    while True:
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(slots=True)
class SimulatedServer:
    """One server process; `restart` revives it with the same command line."""

    command: list[str]
    port: int
    process: subprocess.Popen[bytes]

    @property
    def base_url(self) -> str:
        """The address without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process that serves now."""
        return self.process.pid

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send JSON (or raw bytes); return the status and the decoded body (text if not JSON)."""
        return request_json(self.base_url, method, path, body)

    def stats(self) -> dict[str, Any]:
        """Read the server's counters."""
        status, body = self.request("GET", "/simulator/stats")
        assert status == 200, body
        return dict(body)

    def set_faults(self, **faults: Any) -> None:
        """Replace the faults in force; without arguments, switch all of them off."""
        status, body = self.request("POST", "/simulator/faults", faults)
        assert status == 200, body

    def kill(self) -> None:
        """Kill the process as kill -9 would, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Start the same command again, after its death, and wait until it is healthy."""
        self.kill()
        self.process = _spawn(self.command)
        wait_healthy(self)


def request_json(base_url: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Send JSON (or raw bytes); return the status and the decoded body (text if not JSON)."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        base_url + path,
        data=data,
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, _decode(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _decode(error.read())


def _decode(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(command, cwd=ROOT, env=environment)


def wait_healthy(server: SimulatedServer, seconds: float = START_SECONDS) -> None:
    """Poll /health until it answers 200; fail if the process ends or the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        code = server.process.poll()
        assert code is None, f"the simulated server ended with code {code} before it was healthy"
        with contextlib.suppress(OSError):
            if server.request("GET", "/health")[0] == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"no healthy server on port {server.port} after {seconds} s")


def build_flags(flags: dict[str, Any]) -> list[str]:
    """Turn keyword arguments into command line flags; None and False leave a flag out."""
    arguments: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            arguments += [flag, text]
    return arguments


@contextlib.contextmanager
def start_simulator(n: int = 1, **flags: Any) -> Iterator[list[SimulatedServer]]:
    """Run `n` healthy servers on free ports of 127.0.0.1 for the time of a with block.

    Both parsers are on and the model is called "simulated" unless `flags` say otherwise.
    """
    defaults: dict[str, Any] = {
        "model_path": MODEL_DIR,
        "served_model_name": "simulated",
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen3_coder",
    }
    servers: list[SimulatedServer] = []
    try:
        for number in range(n):
            port = find_free_port()
            command = [sys.executable, "-m", "infra.simulator", "--port", str(port)]
            # With one luck for all, the attempts of a request would fail together.
            command += build_flags({**defaults, "sim_luck": number, **flags})
            servers.append(SimulatedServer(command, port, _spawn(command)))
        # All start at once: eight of them take little longer than one.
        for server in servers:
            wait_healthy(server)
        yield servers
    finally:
        for server in servers:
            server.kill()
