"""Prefect blocks: where credentials come from, and where Prefect's own results go.

Enters: a StoreConfig. Leaves: S3 keys for the store; a saved storage block, by its slug. It exists
so that secrets stay in blocks or the environment, and so that results, which Prefect overwrites on
retry, never share a prefix with data. Results hold receipts: use `result_serializer="json"`.
"""

from __future__ import annotations

import hashlib
from typing import cast

from prefect.filesystems import LocalFileSystem
from pydantic import SecretStr

from tasks.errors import CredentialsRefused
from tasks.storage.config import StoreConfig
from tasks.storage.layout import derive_results_uri, parse_uri
from tasks.storage.store import S3Credentials


async def load_credentials(config: StoreConfig) -> S3Credentials | None:
    """Read the keys from the block that the configuration names; None for boto3's own chain.

    Raises:
        CredentialsRefused: There is no such block, or it holds no keys of its own.
    """
    name = config.s3.credentials_block
    if not config.uri.startswith("s3://") or name is None:
        return None
    from prefect_aws import AwsCredentials, MinIOCredentials  # noqa: PLC0415  (1.5 s to import)

    kind, _, block_name = name.partition("/")
    try:
        if kind == "aws-credentials":
            aws = cast("AwsCredentials", await AwsCredentials.aload(block_name))
            if aws.aws_access_key_id and aws.aws_secret_access_key and not aws.assume_role_arn:
                token = aws.aws_session_token
                return S3Credentials(
                    aws.aws_access_key_id,
                    aws.aws_secret_access_key,
                    SecretStr(token) if token else None,
                )
        elif kind == "minio-credentials":
            minio = cast("MinIOCredentials", await MinIOCredentials.aload(block_name))
            return S3Credentials(minio.minio_root_user, minio.minio_root_password)
    except ValueError as error:
        raise _refused(name, "there is no such block") from error
    raise _refused(name, "the block holds no access key and secret of its own")


async def register_result_storage(config: StoreConfig) -> str:
    """Save the block of Prefect's results and give its slug, for `result_storage`.

    The name is derived from the place, so that saving again changes nothing and another run's
    block is another one.

    Raises:
        ProtectedPrefix: The results' prefix touches a protected one.
        StoreError: The results' prefix overlaps the run's.
        CredentialsRefused: The block of credentials is missing or empty.
    """
    results_uri = derive_results_uri(config.uri, config.results_uri, config.protected)
    location = parse_uri(results_uri)
    place = f"{config.s3.endpoint_url or ''} {results_uri}"
    name = f"draftmill-results-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    if location.scheme == "file":
        await LocalFileSystem(basepath=f"/{location.path}").asave(name, overwrite=True)
        return f"local-file-system/{name}"
    from prefect_aws import AwsCredentials, S3Bucket  # noqa: PLC0415
    from prefect_aws.client_parameters import AwsClientParameters  # noqa: PLC0415

    keys = await load_credentials(config)
    token = keys.session_token if keys else None
    bucket = S3Bucket(
        bucket_name=location.bucket,
        bucket_folder=location.path,
        credentials=AwsCredentials(
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=token.get_secret_value() if token else None,
            region_name=config.s3.region,
            aws_client_parameters=AwsClientParameters(
                endpoint_url=config.s3.endpoint_url,
                config={
                    "s3": {"addressing_style": config.s3.addressing_style},
                    "retries": {"mode": "standard", "max_attempts": 5},
                    "request_checksum_calculation": "when_required",
                    "response_checksum_validation": "when_required",
                },
            ),
        ),
    )
    await bucket.asave(name, overwrite=True)
    return f"s3-bucket/{name}"


def _refused(name: str, what: str) -> CredentialsRefused:
    return CredentialsRefused(
        f"{what}.",
        where=f"store.s3.credentials_block: {name}",
        remedy="Save it (`prefect block create aws-credentials`) and name it "
        "aws-credentials/NAME or minio-credentials/NAME, or leave the field empty for the usual "
        "AWS chain: environment, profile, role.",
    )
