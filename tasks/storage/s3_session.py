"""Who speaks to S3: a session whose keys last as long as a run does.

Enters: credentials. Leaves: a boto3 session; with a role, one that assumes it again whenever its
keys are about to expire. It exists because the static keys of an assumed role end in mid-run, an
hour into a week.

The place of STS is AWS's for the region, or AWS_ENDPOINT_URL_STS.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore import exceptions as faults
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.loaders import Loader, create_loader

from tasks.storage.store import AssumedRole, S3Credentials

_SESSION_NAME = "draftmill"


def make_session(region: str | None, credentials: S3Credentials | None) -> boto3.Session:
    """Make a session; nothing is sent yet.

    Raises:
        botocore.exceptions.BotoCoreError: The profile or the keys for the role cannot be found.
    """
    keys = credentials or S3Credentials()
    secret, token = keys.secret_access_key, keys.session_token
    session = boto3.Session(
        botocore_session=_start_session(keys.profile),
        region_name=region,
        aws_access_key_id=keys.access_key_id,
        aws_secret_access_key=secret.get_secret_value() if secret else None,
        aws_session_token=token.get_secret_value() if token else None,
    )
    return session if keys.role is None else _assume(session, keys.role)


def _start_session(profile: str | None = None) -> botocore.session.Session:
    session = botocore.session.Session(profile=profile)
    models = _load_models(session.get_config_variable("data_path"))
    session.register_component("data_loader", models)
    return session


@cache
def _load_models(data_path: str | None) -> Loader:
    """Give what botocore knows of services: else each session parses a megabyte of JSON anew."""
    return create_loader(data_path)


def _assume(session: boto3.Session, role: AssumedRole) -> boto3.Session:
    source = session.get_credentials()
    if source is None:
        raise faults.NoCredentialsError

    def create_client(service: str, **keys: Any) -> Any:
        return session.client(service, **keys)  # type: ignore[call-overload]

    fetcher = AssumeRoleCredentialFetcher(
        client_creator=create_client,
        source_credentials=source,
        role_arn=role.arn,
        extra_args={"RoleSessionName": _SESSION_NAME, **role.options},
    )
    acting = _start_session()
    # The one place where botocore takes credentials that refresh.
    acting._credentials = DeferredRefreshableCredentials(  # type: ignore[attr-defined]
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return boto3.Session(botocore_session=acting, region_name=session.region_name)
