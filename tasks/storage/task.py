"""Prefect blocks: where credentials come from, and where Prefect's own results go.

Enters: a StoreConfig, and keys from the settings. Leaves: S3 keys for the store; saved blocks.
It exists so that secrets stay in blocks or the environment, and so that results, which
Prefect overwrites on retry, never share a prefix with data. Results hold receipts: use
`result_serializer="json"`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, cast

from prefect.filesystems import LocalFileSystem, WritableFileSystem
from pydantic import SecretStr

from tasks.errors import CredentialsRefused
from tasks.settings import Settings
from tasks.storage.config import StoreConfig
from tasks.storage.layout import derive_results_uri
from tasks.storage.location import parse_uri
from tasks.storage.store import AssumedRole, S3Credentials

if TYPE_CHECKING:
    from prefect_aws import AwsCredentials, MinIOCredentials


async def load_credentials(config: StoreConfig) -> S3Credentials | None:
    """Read the keys from the block that the configuration names; None for boto3's own chain.

    Raises:
        CredentialsRefused: There is no such block, or it holds no keys and names no role.
    """
    name = config.s3.credentials_block
    if not config.uri.startswith("s3://") or name is None:
        return None
    from prefect_aws import AwsCredentials, MinIOCredentials, S3Bucket  # noqa: PLC0415  (1.5 s)

    kind, _, block_name = name.partition("/")
    block: Any = None
    try:
        if kind == "s3-bucket":
            block = cast("S3Bucket", await S3Bucket.aload(block_name)).credentials
        elif kind == "aws-credentials":
            block = await AwsCredentials.aload(block_name)
        elif kind == "minio-credentials":
            block = await MinIOCredentials.aload(block_name)
    except ValueError as error:
        raise _refused(name, "there is no such block") from error
    if isinstance(block, MinIOCredentials):
        return S3Credentials(block.minio_root_user, block.minio_root_password)
    if isinstance(block, AwsCredentials) and (keys := _read_aws(block)):
        return keys
    raise _refused(name, "the block holds no access key and secret, profile or role")


async def save_credentials(config: StoreConfig, settings: Settings) -> str | None:
    """Create or renew the block that the configuration names, with the keys of the settings.

    Nothing is saved without both `DRAFTMILL_S3_ACCESS_KEY_ID` and `DRAFTMILL_S3_SECRET_ACCESS_KEY`;
    what else a block of that name holds (region, role) stays.

    Returns:
        The block's slug; None where nothing was to be saved.

    Raises:
        CredentialsRefused: The name is not one of a block of credentials.
    """
    name = config.s3.credentials_block
    access, secret = settings.s3_access_key_id, settings.s3_secret_access_key
    if name is None or access is None or secret is None:
        return None
    from prefect_aws import AwsCredentials, MinIOCredentials  # noqa: PLC0415

    kind, _, block_name = name.partition("/")
    if kind == "aws-credentials" and block_name:
        block: Any = await _load_or_none(AwsCredentials, block_name) or AwsCredentials()
        block.aws_access_key_id, block.aws_secret_access_key = access.get_secret_value(), secret
    elif kind == "minio-credentials" and block_name:
        block = await _load_or_none(MinIOCredentials, block_name) or MinIOCredentials(
            minio_root_user="", minio_root_password=""
        )
        block.minio_root_user, block.minio_root_password = access.get_secret_value(), secret
    else:
        raise _refused(name, "only aws-credentials/NAME and minio-credentials/NAME can be saved")
    block.region_name = config.s3.region or block.region_name
    await block.asave(block_name, overwrite=True)
    return name


async def register_result_storage(config: StoreConfig, settings: Settings) -> WritableFileSystem:
    """Save the block of Prefect's results and give it, for `result_storage`.

    By its slug Prefect would read it from the server again at every task, three times.
    The name is derived from the place, so that saving again changes nothing and another run's
    block is another one. Prefect's block keeps the first keys of an assumed role until they expire:
    with a role, results lie in a folder of this machine. That costs a look into the store where a
    run is taken up on another one, and no work.

    Raises:
        ProtectedPrefix: The results' prefix touches a protected one.
        StoreError: The results' prefix overlaps the run's.
        CredentialsRefused: The block of credentials is missing or empty.
    """
    results_uri = derive_results_uri(config.uri, config.results_uri, config.protected)
    location = parse_uri(results_uri)
    place = f"{config.s3.endpoint_url or ''} {results_uri}"
    name = f"draftmill-results-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
    keys = await load_credentials(config)
    if location.scheme == "file" or (keys and keys.role):
        local = f"/{location.path}" if location.scheme == "file" else settings.results_dir / name
        folder = LocalFileSystem(basepath=str(local))
        await folder.asave(name, overwrite=True)
        return folder
    from prefect_aws import AwsCredentials, S3Bucket  # noqa: PLC0415
    from prefect_aws.client_parameters import AwsClientParameters  # noqa: PLC0415

    keys = keys or S3Credentials()
    token = keys.session_token
    bucket = S3Bucket(
        bucket_name=location.bucket,
        bucket_folder=location.path,
        credentials=AwsCredentials(
            aws_access_key_id=keys.access_key_id,
            aws_secret_access_key=keys.secret_access_key,
            aws_session_token=token.get_secret_value() if token else None,
            profile_name=keys.profile,
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
    return bucket


def _read_aws(block: AwsCredentials) -> S3Credentials | None:
    role = None
    if block.assume_role_arn:
        role = AssumedRole(block.assume_role_arn, block.assume_role_kwargs.get_params_override())
    has_keys = block.aws_access_key_id and block.aws_secret_access_key
    if not (has_keys or role or block.profile_name):
        return None
    token = block.aws_session_token
    return S3Credentials(
        block.aws_access_key_id,
        block.aws_secret_access_key,
        SecretStr(token) if token else None,
        block.profile_name,
        role,
    )


async def _load_or_none(kind: Any, name: str) -> AwsCredentials | MinIOCredentials | None:
    try:
        return cast("AwsCredentials | MinIOCredentials", await kind.aload(name))
    except ValueError:
        return None


def _refused(name: str, what: str) -> CredentialsRefused:
    return CredentialsRefused(
        f"{what}.",
        where=f"store.s3.credentials_block: {name}",
        remedy="Save it (`prefect block create aws-credentials`, or set DRAFTMILL_S3_ACCESS_KEY_ID "
        "and DRAFTMILL_S3_SECRET_ACCESS_KEY) and name it aws-credentials/NAME, "
        "minio-credentials/NAME or s3-bucket/NAME, or leave the field empty for the usual AWS "
        "chain: environment, profile, role.",
    )
