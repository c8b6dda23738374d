"""Draftmill as it is operated: on a Prefect server on PostgreSQL, deployed, with a worker.

    with start_operations(tmp_path) as box, box.worker():
        box.deploy(config)
        box.await_end(box.start("expand/box"))

The server's services are on, its loops are short, and so are the worker's; all else is as in the
field. Every process is ended by its id.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.support.besiege import write_one_certificate
from tests.support.cli import Cli
from tests.support.postgres import Postgres, start_postgres
from tests.support.prefect_server import start_prefect_server
from tests.support.simulator import ROOT, SimulatedServer, find_free_port

T = TypeVar("T")
PREFECT = str(Path(sys.executable).with_name("prefect"))
# Generous: a busy box takes ten times as long as a quiet one.
SECONDS = 600.0
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
POOL = "gpu-box"
# The least that Prefect takes.
HEARTBEAT_SECONDS = 30
_DATABASE = "prefect"
_WORKER = {
    # After three missed ones it counts as gone: a busy box must not look like that.
    "PREFECT_WORKER_HEARTBEAT_SECONDS": "5",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
}
CONFIG = """
name: operated
store: {{uri: {root}}}
model: {{path: "builtin:simulator", served_name: simulated, context_length: 4096}}
sampling: {{max_tokens: 512}}
sources:
  mine: {source}
extraction: {{chunk_size: {chunk_size}, canary_size: {chunk_size}, min_chars: 5}}
gates: {{min_rows: 1000}}
serving: {{mode: attach, urls: [{urls}], ready_timeout_seconds: 60}}
"""


@dataclass(frozen=True)
class Operations:
    """A Prefect server, and the box whose worker serves it."""

    folder: Path
    url: str
    environment: dict[str, str]
    _postgres: Postgres
    _server: ExitStack
    _client: httpx.Client

    def serve(self) -> None:
        """Start the Prefect server on the database as it is."""
        port = int(self.url.rpartition(":")[2].split("/")[0])
        self._home.mkdir(parents=True, exist_ok=True)
        database = self._postgres.url(_DATABASE)
        self._server.enter_context(start_prefect_server(self._home, database=database, port=port))

    def wipe_database(self) -> None:
        """End the Prefect server, lose its database, and start it on an empty one.

        As docs/operate.md has it, it must forget that it has made its kinds of block.
        """
        self._server.close()
        self._postgres.wipe(_DATABASE)
        (self._home / "memo_store.toml").unlink()
        self.serve()

    @property
    def _home(self) -> Path:
        return self.folder / "prefect-server"

    def get(self, path: str) -> Any:
        """Read from Prefect's API."""
        return _read(self._client.get(f"{self.url}/{path}"))

    def post(self, path: str, body: Any) -> Any:
        """Write to Prefect's API, or ask it with a filter."""
        return _read(self._client.post(f"{self.url}/{path}", json=body))

    def patch(self, path: str, body: Any) -> None:
        """Change something through Prefect's API."""
        _read(self._client.patch(f"{self.url}/{path}", json=body))

    def put(self, path: str, body: Any) -> None:
        """Replace something through Prefect's API."""
        _read(self._client.put(f"{self.url}/{path}", json=body))

    def delete(self, path: str) -> None:
        """Remove something through Prefect's API."""
        _read(self._client.delete(f"{self.url}/{path}"))

    def set_state(self, run_id: str, kind: str, name: str = "", message: str = "") -> None:
        """Set a run's state, as the UI does."""
        state = {"type": kind, "name": name or kind.title(), "message": message}
        self.post(f"flow_runs/{run_id}/set_state", {"state": state, "force": True})

    def find_automation(self, name: str) -> dict[str, Any]:
        """Read an automation by its name."""
        (found,) = (one for one in self.post("automations/filter", {}) if one["name"] == name)
        return dict(found)

    def save_webhook(self, name: str, url: str) -> str:
        """Save a block through which notifications go to `url`; give its slug."""
        kind = self.get("block_types/slug/custom-webhook")["id"]
        wanted = {"block_schemas": {"block_type_id": {"any_": [kind]}}}
        schema = self.post("block_schemas/filter", wanted)[0]["id"]
        data = {
            "name": name,
            "url": url,
            "json_data": {"subject": "{{subject}}", "body": "{{body}}"},
        }
        block = {"name": name, "data": data, "block_type_id": kind, "block_schema_id": schema}
        self.post("block_documents/", block)
        return f"custom-webhook/{name}"

    def deploy(self, config: Path, *more: str) -> list[str]:
        """Do as `make deploy` does; give what it names."""
        command = [sys.executable, "-m", "deployments.deploy", str(config), *more]
        return self._call(command).splitlines()

    def prefect(self, *arguments: str) -> str:
        """Call Prefect's own command line."""
        return self._call([PREFECT, *arguments])

    def _call(self, command: list[str]) -> str:
        told = subprocess.run(
            command,
            env=self.environment,
            cwd=ROOT,
            check=False,
            text=True,
            timeout=SECONDS,
            capture_output=True,
        )
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def find_deployment(self, name: str) -> dict[str, Any]:
        """Read a deployment by `FLOW/NAME`."""
        return dict(self.get(f"deployments/name/{name}"))

    def start(self, name: str, **parameters: Any) -> str:
        """Start a run of a deployment; give its id."""
        path = f"deployments/{self.find_deployment(name)['id']}/create_flow_run"
        return str(self.post(path, {"parameters": parameters})["id"])

    def retry(self, run_id: str) -> None:
        """Have a run that has ended taken up again, as the UI's button does."""
        self.set_state(run_id, "SCHEDULED", "AwaitingRetry")

    def list_runs(self, name: str) -> list[dict[str, Any]]:
        """List the runs of a deployment, the oldest first."""
        wanted = {"id": {"any_": [self.find_deployment(name)["id"]]}}
        runs = self.post("flow_runs/filter", {"deployments": wanted})
        return sorted(runs, key=lambda run: str(run["created"]))

    def read_run(self, run_id: str) -> dict[str, Any]:
        """Read a flow run."""
        return dict(self.get(f"flow_runs/{run_id}"))

    def await_end(self, run_id: str, *, after: int = 1) -> dict[str, Any]:
        """Wait until a run's latest try, counted from 1, has ended; give its state."""

        def look() -> dict[str, Any] | None:
            run = self.read_run(run_id)
            ended = run["state"]["type"] in ENDED and run["run_count"] >= after
            return dict(run["state"]) if ended else None

        return await_value(look, f"the end of run {run_id}")

    def await_process(self, run_id: str) -> psutil.Process:
        """Wait until a worker has started a run's process; give it."""

        def look() -> psutil.Process | None:
            found = self.read_run(run_id)["infrastructure_pid"]
            return psutil.Process(int(found.rpartition(":")[2])) if found else None

        return await_value(look, f"the process of run {run_id}")

    @contextmanager
    def worker(self, pool: str = POOL) -> Iterator[subprocess.Popen[bytes]]:
        """Run a worker beside the block; what it started ends with it."""
        command = [PREFECT, "worker", "start", "--pool", pool, "--type", "process"]
        with (self.folder / "worker.log").open("ab") as log:
            process = subprocess.Popen(
                command, env={**self.environment, **_WORKER}, cwd=ROOT, stdout=log, stderr=log
            )
            try:
                yield process
            finally:
                family = _list_family(process)
                process.kill()
                process.wait()
                for one in family:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()

    def read_worker_log(self) -> str:
        """Read what workers and the runs in them said."""
        return (self.folder / "worker.log").read_text(errors="replace")


@contextmanager
def start_operations(folder: Path, **env: str) -> Iterator[Operations]:
    """Start PostgreSQL and a Prefect server on it; `env` goes to the worker and all commands."""
    url = f"http://127.0.0.1:{find_free_port()}/api"
    home = str(folder / "prefect")
    settings = {
        "PREFECT_API_URL": url,
        "PREFECT_HOME": home,
        "PREFECT_API_SSL_CERT_FILE": str(write_one_certificate(folder)),
        "DO_NOT_TRACK": "1",
        **env,
    }
    # An idle connection is dropped before the server drops it, after five seconds.
    limits = httpx.Limits(keepalive_expiry=2)
    with (
        start_postgres() as postgres,
        httpx.Client(timeout=60, limits=limits) as client,
        ExitStack() as server,
    ):
        postgres.create(_DATABASE)
        environment = Cli(folder / "home", settings).environment
        box = Operations(folder, url, environment, postgres, server, client)
        box.serve()
        try:
            yield box
        finally:
            _end_all_of(home)


def write_rows(first: int, last: int) -> bytes:
    """Invent questions, one a line."""
    rows = [
        {"question": f"Describe island number {n} in two sentences."} for n in range(first, last)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_config(
    path: Path, root: Path, source: str, servers: Sequence[SimulatedServer], chunk_size: int = 20
) -> Path:
    """Write the configuration of a run that attaches servers; `source` is an entry in YAML."""
    urls = ", ".join(f'"{server.base_url}"' for server in servers)
    path.write_text(CONFIG.format(root=root, source=source, urls=urls, chunk_size=chunk_size))
    return path


def await_value(look: Callable[[], T | None], what: str, seconds: float = SECONDS) -> T:
    """Look until there is something, and give it."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        # Each look at Prefect's API costs its server a hundredth of a second.
        time.sleep(0.5)
    return found


def _read(reply: httpx.Response) -> Any:
    assert reply.is_success, f"{reply.status_code} {reply.text[:2000]}"
    return reply.json() if reply.content else None


def _end_all_of(prefect_home: str) -> None:
    """Kill what still runs on a client's home: a run outlives a worker that was killed."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("PREFECT_HOME") == prefect_home:
                process.kill()


def _list_family(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
