"""Debian's PostgreSQL, started by the test itself on 127.0.0.1 and ended by its process id.

    with start_postgres() as postgres:
        postgres.create("prefect")
        postgres.url("prefect")  # postgresql+asyncpg://...

It refuses to run as root, so that its processes and its data belong to an unprivileged user then.
"""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.simulator import find_free_port

START_SECONDS = 60.0
_USER = "draftmill"
# What a test loses with the machine it makes anew.
_OPTIONS = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=60")


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server that runs."""

    port: int
    password: str
    programs: Path

    def url(self, database: str) -> str:
        """Give a database's address as Prefect takes it."""
        return f"postgresql+asyncpg://{_USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> None:
        """Create an empty database."""
        self.execute(f"CREATE DATABASE {database}")

    def wipe(self, database: str) -> None:
        """Drop a database under whoever is connected, and create it anew."""
        self.execute(f"DROP DATABASE {database} WITH (FORCE)")
        self.create(database)

    def execute(self, statement: str) -> None:
        """Execute one statement that stands outside of any of the test's databases."""
        command = [str(self.programs / "psql"), "--no-psqlrc", "--quiet", "--command", statement]
        environment = {
            **os.environ,
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.port),
            "PGUSER": _USER,
            "PGPASSWORD": self.password,
            "PGDATABASE": "postgres",
        }
        told = subprocess.run(
            command, env=environment, check=False, capture_output=True, text=True, timeout=60
        )
        assert told.returncode == 0, told.stderr


@contextmanager
def start_postgres() -> Iterator[Postgres]:
    """Start a server with a data folder of its own for the time of a with block."""
    owner = _find_owner()
    with tempfile.TemporaryDirectory(prefix="draftmill-postgres-") as name:
        folder, data = Path(name), Path(name) / "data"
        postgres = Postgres(find_free_port(), secrets.token_hex(16), _find_programs())
        password_file = folder / "password"
        password_file.write_text(postgres.password)
        if owner:
            os.chown(folder, owner["user"], owner["group"])
            os.chown(password_file, owner["user"], owner["group"])
        initdb = [str(postgres.programs / "initdb"), "--pgdata", str(data), "--username", _USER]
        initdb += ["--auth", "scram-sha-256", "--pwfile", str(password_file)]
        initdb += ["--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **owner)
        command = [str(postgres.programs / "postgres"), "-D", str(data), "-p", str(postgres.port)]
        command += ["-h", "127.0.0.1", "-k", str(folder)]
        command += [word for option in _OPTIONS for word in ("-c", option)]
        with (folder / "postgres.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, start_new_session=True, **owner
            )
            try:
                _await_ready(postgres, process, folder / "postgres.log")
                yield postgres
            finally:
                # The fast shutdown: connections are cut, and every child ends.
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _find_programs() -> Path:
    """Find the newest server; Debian keeps it off the PATH."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4])
    )
    assert found, "no PostgreSQL is installed: apt-get install postgresql"
    return found[-1].parent


def _find_owner() -> dict[str, Any]:
    """Say as whom it runs, for `subprocess`; as ourselves where we are not root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _await_ready(postgres: Postgres, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    ask = [str(postgres.programs / "pg_isready"), "-q", "-h", "127.0.0.1"]
    ask += ["-p", str(postgres.port)]
    while subprocess.run(ask, check=False).returncode != 0:
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline, "PostgreSQL does not answer"
        time.sleep(0.1)
