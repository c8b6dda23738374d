"""The flow that verifies on a schedule: every run below a root, by the configuration's own keys."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import pytest
from prefect.artifacts import Artifact
from prefect_aws import MinIOCredentials
from pydantic import SecretStr

from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.verify import verify
from tasks.errors import DatasetInvalid, StoreError, UserError
from tasks.storage.config import StoreConfig
from tasks.storage.layout import data_key, request_key
from tests.support.finished import finish_run
from tests.support.s3 import S3Server

# Prefect's client leaves the socket of its events to the garbage collector.
pytestmark = [
    pytest.mark.usefixtures("prefect_api"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NAMES = tuple(f"mine@{n:012x}-12345678" for n in range(4))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    finished = finish_run(tmp_path_factory.mktemp("finished"))
    return Path(unquote(finished.prefix.removeprefix("file://")))


@pytest.fixture
def root(tmp_path: Path, whole: Path) -> Path:
    """A root with two runs over one source, one that has no manifest yet, and one not begun."""
    for name in NAMES[:2]:
        shutil.copytree(whole, tmp_path / "root" / name)
    begun = tmp_path / "root" / NAMES[2] / request_key()
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"{}")
    for name in (NAMES[3], f"{NAMES[0]}-prefect-results", "notes"):
        (tmp_path / "root" / name).mkdir()
    return tmp_path / "root"


def configure(store: StoreConfig) -> ExpansionConfig:
    source = "sources={mine: {path: rows.jsonl, mapping: {prompt: q}}}"
    sets = ["name=autumn", f"store.uri={store.uri}", source]
    return load_config("demo", sets).config.model_copy(update={"store": store})


def damage(run: Path) -> None:
    path = run / data_key(0)
    path.write_bytes(path.read_bytes()[:-5])


def upload(folder: Path, server: S3Server, prefix: str) -> None:
    client = server.client()
    for path in (each for each in folder.rglob("*") if each.is_file()):
        key = f"{prefix}/{path.relative_to(folder)}"
        client.put_object(Bucket=server.bucket, Key=key, Body=path.read_bytes())


async def test_every_run_at_the_root_and_below_it_is_told_of_and_faulty_ones_fail_by_name(
    root: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configure(StoreConfig(uri=root.as_uri()))
    with caplog.at_level(logging.INFO):
        found = await verify(config)
    assert {unquote(row["run"]).rpartition("/")[2]: row["verdict"] for row in found["runs"]} == {
        NAMES[0]: "whole", NAMES[1]: "whole", NAMES[2]: "unfinished"}  # fmt: skip
    assert all(row["objects"] for row in found["runs"][:2])
    told = [unquote(line) for line in caplog.messages]
    for name, stage in zip(NAMES, ("whole", "whole", "unfinished"), strict=False):
        assert len([line for line in told if name in line and line.startswith(stage)]) == 1
    assert not [line for line in told if NAMES[3] in line]

    # Beside them one at the root itself, as a run by hand leaves it.
    shutil.copytree(whole, root, dirs_exist_ok=True)
    damage(root / NAMES[1])
    damage(root)
    with pytest.raises(DatasetInvalid) as caught:
        await verify(config)
    names = caught.value.where.split(", ")
    assert [unquote(name) for name in names] == [f"file://{root}", f"file://{root / NAMES[1]}"]
    assert "2 of 4 runs" in str(caught.value)
    assert all(problem.startswith(tuple(names)) for problem in caught.value.problems)
    assert all(f"`draftmill repair {name}`" in caught.value.remedy for name in names)
    table = await Artifact.aget("verification-autumn")
    assert table is not None
    rows = json.loads(cast("str", table.data))
    assert [row["verdict"] for row in rows] == ["faulty", "whole", "faulty", "unfinished"]
    assert data_key(0) in rows[0]["first of them"]


async def test_a_prefix_stands_in_for_the_configurations_own(root: Path) -> None:
    damage(root / NAMES[1])
    elsewhere = configure(StoreConfig(uri="file:///nowhere/at/all"))
    one = (root / NAMES[0]).as_uri()
    for config in (elsewhere, None):
        found = await verify(config, prefix=one)
        assert [(row["run"], row["verdict"]) for row in found["runs"]] == [(one, "whole")]
    # No more than sizes and ends of what is read in part: the damage is to one of these.
    with pytest.raises(DatasetInvalid, match=NAMES[1].replace("@", "%40")):
        await verify(prefix=root.as_uri(), read_data="0%")


async def test_where_no_run_is_that_is_one_error(tmp_path: Path) -> None:
    (tmp_path / NAMES[0]).mkdir()
    with pytest.raises(UserError, match="no run at this prefix") as caught:
        await verify(configure(StoreConfig(uri=tmp_path.as_uri())))
    assert caught.value.where == tmp_path.as_uri()
    with pytest.raises(UserError, match="neither a configuration nor a prefix"):
        await verify()
    with pytest.raises(StoreError):
        await verify(prefix=str(tmp_path))
    with pytest.raises(UserError, match="no share"):
        await verify(prefix=tmp_path.as_uri(), read_data="half")


async def test_the_store_is_reached_by_the_endpoint_and_the_block_of_the_configuration(
    seaweedfs: S3Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    await MinIOCredentials(
        minio_root_user=seaweedfs.access_key, minio_root_password=SecretStr(seaweedfs.secret_key)
    ).asave("verifier", overwrite=True)
    damage(root / NAMES[1])
    upload(root, seaweedfs, "verified")
    store = seaweedfs.config("verified", credentials_block="minio-credentials/verifier")
    with pytest.raises(DatasetInvalid) as caught:
        await verify(configure(store))
    assert caught.value.where == f"s3://{seaweedfs.bucket}/verified/{NAMES[1]}"
    assert "1 of 3 runs" in str(caught.value)
    other = configure(store.model_copy(update={"uri": f"s3://{seaweedfs.bucket}/other"}))
    found = await verify(other, prefix=f"s3://{seaweedfs.bucket}/verified/{NAMES[0]}")
    assert [row["verdict"] for row in found["runs"]] == ["whole"]
