"""Fixtures that every test may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.storage.config import StoreConfig
from tasks.storage.store import ArtifactStore, open_store
from tests.support.cli import Cli
from tests.support.prefect_server import start_prefect_server
from tests.support.s3 import S3Server, start_rclone_s3, start_seaweedfs

EARLIER_DATASET = {
    "completions/part-000000.jsonl.zst": b"an earlier dataset, part 0",
    "completions/part-000001.jsonl.zst": b"an earlier dataset, part 1",
    "completions/_manifest/r0000.json": b'{"revision": 0}',
}


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS with an earlier dataset in it."""
    with start_seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        client = server.client()
        for key, data in EARLIER_DATASET.items():
            client.put_object(Bucket=server.bucket, Key=key, Body=data)
        assert set(list_etags(server, "completions/")) == set(EARLIER_DATASET)
        yield server


@pytest.fixture
def seaweedfs(seaweedfs_server: S3Server) -> Iterator[S3Server]:
    """The SeaweedFS; whatever a test does, the earlier dataset is as it was afterwards."""
    before = list_etags(seaweedfs_server, "completions/")
    yield seaweedfs_server
    assert list_etags(seaweedfs_server, "completions/") == before


@pytest.fixture(scope="session")
def overwriting_s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that ignores the create-only condition."""
    with start_rclone_s3(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Prefect server, for commands that run as processes of their own."""
    with start_prefect_server(tmp_path_factory.mktemp("prefect"), pages=True) as url:
        yield url


@pytest.fixture(scope="session")
def prefect_api(prefect_url: str) -> Iterator[None]:
    """The real Prefect server, as the API of this process."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: prefect_url}):
        yield


@pytest.fixture
def cli(tmp_path: Path, prefect_url: str) -> Cli:
    """The command line, with a home of its own, against the real Prefect server."""
    return Cli(tmp_path / "home", {"PREFECT_API_URL": prefect_url})


@pytest.fixture
def file_store(tmp_path: Path) -> Iterator[ArtifactStore]:
    """An empty store in a folder."""
    store = open_store(StoreConfig(uri=f"file://{tmp_path}/store/run"))
    yield store
    store.close()


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactStore]:
    """An empty store, once in a folder and once in SeaweedFS."""
    if request.param == "file":
        opened = open_store(StoreConfig(uri=f"file://{tmp_path}/store/run"))
    else:
        server: S3Server = request.getfixturevalue("seaweedfs")
        prefix = f"{tmp_path.parent.name}/{tmp_path.name}/run"
        opened = open_store(server.config(prefix), server.credentials)
    yield opened
    opened.close()


def list_etags(server: S3Server, prefix: str) -> dict[str, tuple[str, str]]:
    """Tell the ETag and the time of each object under a prefix."""
    reply = server.client().list_objects_v2(Bucket=server.bucket, Prefix=prefix)
    return {
        entry["Key"]: (entry["ETag"], entry["LastModified"].isoformat())
        for entry in reply.get("Contents", [])
    }
