"""Real S3 servers on 127.0.0.1: SeaweedFS, which keeps its promises, and rclone, which does not.

Enters: a folder. Leaves: a running server with a bucket, ended by its process id. Both binaries
come from wheels of the development environment.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from tasks.storage.config import S3Config, StoreConfig
from tasks.storage.store import S3Credentials
from tests.support.simulator import find_free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS_KEY = "draftmill-tests"
SECRET_KEY = "draftmill-tests-secret"
# A user of SeaweedFS who may do nothing but what a bucket policy allows.
RUNNER = ("draftmill-runner", "draftmill-runner-secret")
START_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server that answers, and a bucket in it."""

    endpoint_url: str
    access_key: str
    secret_key: str
    bucket: str

    @property
    def credentials(self) -> S3Credentials:
        """The keys that it accepts."""
        return S3Credentials(self.access_key, SecretStr(self.secret_key))

    def as_user(self, access_key: str, secret_key: str) -> S3Server:
        """The same server, as another of its users sees it."""
        return replace(self, access_key=access_key, secret_key=secret_key)

    def config(self, prefix: str, **changes: object) -> StoreConfig:
        """Settings of a store under a prefix of the bucket; `changes` are fields of S3Config."""
        s3 = S3Config.model_validate(
            {
                "endpoint_url": self.endpoint_url,
                "region": "us-east-1",
                "addressing_style": "path",
                **changes,
            }
        )
        return StoreConfig(uri=f"s3://{self.bucket}/{prefix}", s3=s3)

    def client(self, config: Config | None = None) -> S3Client:
        """A bare client, to look behind the store's back; `config` is laid over the usual one."""
        usual = Config(
            s3={"addressing_style": "path"},
            retries={"max_attempts": 0},
            connect_timeout=5,
            read_timeout=20,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=usual.merge(config) if config else usual,
        )


@contextmanager
def start_seaweedfs(folder: Path, bucket: str = "tests") -> Iterator[S3Server]:
    """Run SeaweedFS with one bucket, its data under `folder`."""
    identities = {
        "identities": [
            {
                "name": "tests",
                "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            },
            {
                "name": "runner",
                "credentials": [{"accessKey": RUNNER[0], "secretKey": RUNNER[1]}],
                "actions": [],
            },
        ]
    }
    data = folder / "data"
    data.mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps(identities))
    names = ["master", "volume", "filer", "s3"]
    ports = dict(
        zip([*names, *(f"{name}.grpc" for name in names)], find_free_ports(8), strict=True)
    )
    command = [
        _binary("weed"),
        "server",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-master.volumeSizeLimitMB=256",
        "-volume.max=100",
        "-volume.preStopSeconds=0",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"-{name}.port={ports[name]}" for name in names),
        *(f"-{name}.port.grpc={ports[f'{name}.grpc']}" for name in names),
    ]
    server = S3Server(f"http://127.0.0.1:{ports['s3']}", ACCESS_KEY, SECRET_KEY, bucket)
    with _run(command, folder / "weed.log") as process:
        _await_put(server, process, folder / "weed.log")
        yield server


@contextmanager
def start_rclone_s3(folder: Path, bucket: str = "tests") -> Iterator[S3Server]:
    """Run `rclone serve s3`, which ignores the create-only condition and overwrites."""
    data = folder / "data"
    (data / bucket).mkdir(parents=True)
    (port,) = find_free_ports(1)
    command = [
        _binary("rclone"),
        "serve",
        "s3",
        f"--config={folder / 'rclone.conf'}",
        f"--auth-key={ACCESS_KEY},{SECRET_KEY}",
        f"--addr=127.0.0.1:{port}",
        str(data),
    ]
    server = S3Server(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY, bucket)
    with _run(command, folder / "rclone.log") as process:
        _await_put(server, process, folder / "rclone.log")
        yield server


def find_free_ports(n_ports: int) -> list[int]:
    """Give ports that nothing listens on at the moment, all different."""
    ports: set[int] = set()
    while len(ports) < n_ports:
        ports.add(find_free_port())
    return sorted(ports)


def _binary(name: str) -> str:
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise FileNotFoundError(f"{path}: install the development requirements")
    return str(path)


@contextmanager
def _run(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "HOME": str(log.parent)},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


def _await_put(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the bucket exists and takes an authenticated PUT: ports open long before."""
    client = server.client()
    deadline = time.monotonic() + START_SECONDS
    last: Exception | None = None
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if not any(b["Name"] == server.bucket for b in client.list_buckets()["Buckets"]):
                client.create_bucket(Bucket=server.bucket)
            client.put_object(Bucket=server.bucket, Key="started", Body=b"yes")
        except (BotoCoreError, ClientError) as error:
            last = error
            time.sleep(0.1)
        else:
            return
    tail = log.read_text(errors="replace")[-2000:]
    raise RuntimeError(f"{server.endpoint_url} did not take a PUT ({last}); its log ends:\n{tail}")
