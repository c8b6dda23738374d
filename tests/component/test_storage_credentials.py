"""Keys that live for an hour carry a run of a week; blocks give them, and settings make blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prefect.filesystems import LocalFileSystem
from prefect_aws import AwsCredentials, MinIOCredentials, S3Bucket
from prefect_aws.assume_role_parameters import AssumeRoleParameters
from pydantic import SecretStr

from tasks.errors import CredentialsRefused
from tasks.settings import Settings
from tasks.storage.config import S3Config, StoreConfig
from tasks.storage.store import AssumedRole, S3Credentials, open_store
from tasks.storage.task import load_credentials, register_result_storage, save_credentials
from tests.support.s3 import S3Server
from tests.support.sts import ACCOUNT_KEY, ROLE, ShortLivedAws, start_sts


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortLivedAws]:
    with start_sts(lifetime_seconds=1.0) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", running.url)
        yield running


def point_at(aws: ShortLivedAws, block: str | None = None) -> StoreConfig:
    s3 = S3Config(
        endpoint_url=aws.url, region="us-east-1", addressing_style="path", credentials_block=block
    )
    return StoreConfig(uri="s3://invented/run", s3=s3)


def test_an_assumed_role_is_assumed_again_before_its_keys_expire(aws: ShortLivedAws) -> None:
    role = AssumedRole(ROLE, {"ExternalId": "invented", "DurationSeconds": 900})
    keys = S3Credentials(ACCOUNT_KEY, SecretStr("source-secret"), role=role)
    store = open_store(point_at(aws), keys)
    store.create("early", b"first keys")
    n_before = aws.n_assumed
    time.sleep(1.2)  # every key issued so far has expired
    assert all(expires < time.time() for expires in aws.expires.values())
    store.create("late", b"later keys")
    assert store.get("early") == b"first keys"
    assert aws.n_assumed > n_before
    assert aws.asked[-1]["ExternalId"] == ["invented"]
    assert aws.asked[-1]["RoleArn"] == [ROLE]
    assert "source-secret" not in repr(keys)
    store.close()


def test_a_role_without_keys_to_assume_it_is_asked_for(
    aws: ShortLivedAws, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CredentialsRefused, match="NoCredentialsError"):
        open_store(point_at(aws), S3Credentials(role=AssumedRole(ROLE, {})))


@pytest.mark.usefixtures("prefect_api")
async def test_a_block_with_a_role_gives_keys_that_refresh_and_results_on_this_machine(
    aws: ShortLivedAws, tmp_path: Path
) -> None:
    await AwsCredentials(
        aws_access_key_id=ACCOUNT_KEY,
        aws_secret_access_key=SecretStr("source-secret"),
        assume_role_arn=ROLE,
        assume_role_kwargs=AssumeRoleParameters(ExternalId="from-the-block"),
    ).asave("by-role", overwrite=True)
    config = point_at(aws, "aws-credentials/by-role")
    keys = await load_credentials(config)
    assert keys is not None
    store = open_store(config, keys)
    store.create("key", b"x")
    store.close()
    assert aws.asked[-1]["ExternalId"] == ["from-the-block"]
    block = await register_result_storage(config, Settings(home=tmp_path))
    assert isinstance(block, LocalFileSystem)
    assert str(block.basepath).startswith(str(tmp_path / "results"))


@pytest.mark.usefixtures("prefect_api")
async def test_the_credentials_of_a_bucket_block_serve_too(seaweedfs: S3Server) -> None:
    secret = SecretStr(seaweedfs.secret_key)
    for name, credentials in (
        ("of-aws", AwsCredentials(aws_access_key_id=seaweedfs.access_key,
                                  aws_secret_access_key=secret)),
        ("of-minio", MinIOCredentials(minio_root_user=seaweedfs.access_key,
                                      minio_root_password=secret)),
    ):  # fmt: skip
        await S3Bucket(bucket_name="invented", credentials=credentials).asave(name, overwrite=True)
        config = seaweedfs.config(f"by-bucket/{name}", credentials_block=f"s3-bucket/{name}")
        assert await load_credentials(config) == seaweedfs.credentials


@pytest.mark.real
@pytest.mark.usefixtures("prefect_api")
@pytest.mark.parametrize("kind", ["aws-credentials", "minio-credentials"])
async def test_settings_make_the_block_and_renew_it(
    seaweedfs: S3Server, tmp_path: Path, kind: str
) -> None:
    config = seaweedfs.config("from-settings/run", credentials_block=f"{kind}/from-settings")
    assert await save_credentials(config, Settings(home=tmp_path)) is None
    for access, secret in (("old", "old-secret"), (seaweedfs.access_key, seaweedfs.secret_key)):
        settings = Settings(
            home=tmp_path,
            s3_access_key_id=SecretStr(access),
            s3_secret_access_key=SecretStr(secret),
        )
        for _ in range(2):  # twice: nothing changes
            assert await save_credentials(config, settings) == f"{kind}/from-settings"
            assert await load_credentials(config) == S3Credentials(access, SecretStr(secret))
    open_store(config, await load_credentials(config)).close()
    assert secret not in repr(settings)


@pytest.mark.real
@pytest.mark.usefixtures("prefect_api")
async def test_a_role_in_a_block_outlives_the_renewal_of_its_keys(
    seaweedfs: S3Server, tmp_path: Path
) -> None:
    await AwsCredentials(assume_role_arn=ROLE).asave("kept-role", overwrite=True)
    config = seaweedfs.config("kept-role/run", credentials_block="aws-credentials/kept-role")
    settings = Settings(
        home=tmp_path, s3_access_key_id=SecretStr("new"), s3_secret_access_key=SecretStr("s")
    )
    await save_credentials(config, settings)
    keys = await load_credentials(config)
    assert keys is not None
    assert (keys.access_key_id, keys.role) == ("new", AssumedRole(ROLE, {}))


@pytest.mark.usefixtures("prefect_api")
async def test_the_region_in_a_block_outlives_the_renewal_of_its_keys(tmp_path: Path) -> None:
    await MinIOCredentials(
        minio_root_user="old", minio_root_password="s", region_name="eu-south-1"
    ).asave("kept-region", overwrite=True)
    config = StoreConfig(
        uri="s3://bucket/run", s3=S3Config(credentials_block="minio-credentials/kept-region")
    )
    settings = Settings(
        home=tmp_path, s3_access_key_id=SecretStr("new"), s3_secret_access_key=SecretStr("s2")
    )
    await save_credentials(config, settings)
    block = cast("MinIOCredentials", await MinIOCredentials.aload("kept-region"))
    assert (block.minio_root_user, block.region_name) == ("new", "eu-south-1")
    assert block.minio_root_password.get_secret_value() == "s2"
