"""Credentials come from blocks, and Prefect's results land beside the run, as JSON."""

from __future__ import annotations

import json
import re
from typing import cast

import pytest
from prefect import flow, task
from prefect.filesystems import LocalFileSystem
from prefect_aws import AwsCredentials, MinIOCredentials, S3Bucket
from pydantic import SecretStr

from tasks.errors import CredentialsRefused, StoreError
from tasks.settings import Settings
from tasks.storage.config import StoreConfig
from tasks.storage.store import open_store
from tasks.storage.task import load_credentials, register_result_storage
from tests.support.s3 import S3Server

pytestmark = pytest.mark.usefixtures("prefect_api")

SETTINGS = Settings()
NAME = re.compile(r"draftmill-results-[0-9a-f]{8}")


def name_block(config: StoreConfig, block: str) -> StoreConfig:
    s3 = config.s3.model_copy(update={"credentials_block": block})
    return config.model_copy(update={"s3": s3})


async def save_and_name(config: StoreConfig) -> str:
    """Save the block of a run's results; give the name that Prefect lists it by."""
    name = (await register_result_storage(config, SETTINGS))._block_document_name
    assert name is not None
    assert NAME.fullmatch(name)
    return name


async def test_keys_come_from_the_block_that_is_named(seaweedfs: S3Server) -> None:
    secret = SecretStr(seaweedfs.secret_key)
    await MinIOCredentials(minio_root_user=seaweedfs.access_key, minio_root_password=secret).asave(
        "by-minio"
    )
    await AwsCredentials(
        aws_access_key_id=seaweedfs.access_key, aws_secret_access_key=secret
    ).asave("by-aws")
    for block in ("minio-credentials/by-minio", "aws-credentials/by-aws"):
        config = name_block(seaweedfs.config("by-block/run"), block)
        assert await load_credentials(config) == seaweedfs.credentials
        store = open_store(config, await load_credentials(config))
        store.create(block, b"x")
        store.close()


async def test_without_a_block_the_usual_chain_decides(seaweedfs: S3Server) -> None:
    assert await load_credentials(seaweedfs.config("run")) is None
    assert await load_credentials(StoreConfig(uri="file:///srv/run")) is None


@pytest.mark.parametrize(
    "block", ["aws-credentials/absent", "minio-credentials/absent", "secret/x", "aws-credentials"]
)
async def test_a_block_that_does_not_exist_is_named(seaweedfs: S3Server, block: str) -> None:
    with pytest.raises(CredentialsRefused) as caught:
        await load_credentials(name_block(seaweedfs.config("run"), block))
    assert block in caught.value.where


async def test_a_block_without_keys_is_refused(seaweedfs: S3Server) -> None:
    await AwsCredentials().asave("empty")
    with pytest.raises(CredentialsRefused, match="no access key"):
        await load_credentials(name_block(seaweedfs.config("run"), "aws-credentials/empty"))


@pytest.mark.real
async def test_results_land_in_s3_as_json_beside_the_run(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweedfs.secret_key)
    config = seaweedfs.config("with-results/run")
    block = await register_result_storage(config, SETTINGS)
    assert isinstance(block, S3Bucket)
    name = await save_and_name(config)
    saved = cast("S3Bucket", await S3Bucket.aload(name))
    assert saved.bucket_folder == block.bucket_folder
    assert await save_and_name(seaweedfs.config("another/run")) != name

    receipt = {"key": "data/part-000001.jsonl.zst", "n_rows": 3}

    @task
    async def make() -> dict[str, object]:
        return receipt

    @flow(result_storage=block, result_serializer="json", persist_result=True)
    async def tell() -> dict[str, object]:
        return await make()

    assert await tell() == receipt
    client = seaweedfs.client()
    listed = client.list_objects_v2(Bucket=seaweedfs.bucket, Prefix="with-results/")
    keys = [entry["Key"] for entry in listed["Contents"]]
    assert keys
    assert all(key.startswith("with-results/run-prefect-results/") for key in keys)
    bodies = [
        json.loads(client.get_object(Bucket=seaweedfs.bucket, Key=key)["Body"].read())
        for key in keys
    ]
    assert [body for body in bodies if body == receipt], bodies
    assert seaweedfs.secret_key not in json.dumps(bodies)
    assert list(open_store(config, seaweedfs.credentials).list()) == []


async def test_results_of_a_folder_lie_in_the_folder_beside_it() -> None:
    config = StoreConfig(uri="file:///srv/store/run")
    name = await save_and_name(config)
    block = cast("LocalFileSystem", await LocalFileSystem.aload(name))
    assert block.basepath == "/srv/store/run-prefect-results"


async def test_results_within_the_run_are_refused() -> None:
    config = StoreConfig(uri="file:///srv/store/run", results_uri="file:///srv/store/run/results")
    with pytest.raises(StoreError, match="outside"):
        await register_result_storage(config, SETTINGS)
