"""The connection to S3, and what each of its faults means to the user.

Enters: connection settings and credentials; later, exceptions of botocore. Leaves: a client, and
errors that name the place and the remedy. Faults are told apart by code, status and type, never
by their text.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from botocore import exceptions as faults
from botocore.config import Config

from tasks.errors import BucketMissing, CredentialsRefused, StoreError, StoreUnreachable
from tasks.storage.config import S3Config
from tasks.storage.s3_session import make_session
from tasks.storage.store import S3Credentials

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CONNECTION_FAULTS = (
    faults.ConnectionError,
    faults.HTTPClientError,
    faults.IncompleteReadError,
    http.client.HTTPException,
)
_CREDENTIAL_FAULTS = (
    faults.NoCredentialsError,
    faults.PartialCredentialsError,
    faults.CredentialRetrievalError,
    faults.TokenRetrievalError,
    faults.UnauthorizedSSOTokenError,
    faults.ProfileNotFound,
)
# Answered with status 400, unlike other refusals.
_STALE_TOKEN = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "InvalidClientTokenId"}
_WRONG_REGION = {"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301"}
_FIRST_TRIES, _TRIES = 2, 5


def _connect(config: S3Config, credentials: S3Credentials | None, *, n_tries: int) -> S3Client:
    """Make a client; nothing is sent yet.

    Args:
        config: How to reach the endpoint.
        credentials: Keys, or None for boto3's own chain.
        n_tries: Tries of one request, the first included.

    Raises:
        StoreError: The endpoint is no address.
        botocore.exceptions.BotoCoreError: The profile or region cannot be found.
    """
    try:
        return make_session(config.region, credentials).client(
            "s3",
            endpoint_url=config.endpoint_url,
            config=Config(
                s3={"addressing_style": config.addressing_style},
                retries={"mode": "standard", "total_max_attempts": n_tries},
                connect_timeout=config.connect_timeout_seconds,
                read_timeout=config.read_timeout_seconds,
                max_pool_connections=config.max_connections,
                # The newer default sends trailers that some servers store inside the object.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
    except ValueError as error:
        raise StoreError(
            f"the endpoint {config.endpoint_url!r} is no address.",
            where="store.s3.endpoint_url",
            remedy="Write it as http://HOST:PORT or https://HOST.",
        ) from error


def greet(
    config: S3Config, credentials: S3Credentials | None, bucket: str, prefix: str
) -> tuple[S3Client, Mapping[str, str]]:
    """Make a client and list one key with it, which shows that bucket, keys and endpoint are right.

    A wrong address is told within a second or two; a busy server, and all that a run meets later,
    is waited for.

    Returns:
        The client, and the headers of the reply.

    Raises:
        StoreError: The endpoint is no address.
        botocore.exceptions.BotoCoreError: It does not answer, or there is no such profile.
        botocore.exceptions.ClientError: It refuses.
    """
    patient = _connect(config, credentials, n_tries=_TRIES)
    hasty = _connect(config, credentials, n_tries=_FIRST_TRIES)
    asked: Any = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": 1}
    try:
        reply = hasty.list_objects_v2(**asked)
    except faults.ClientError as error:
        if status_of(error) < 500:
            raise
        reply = patient.list_objects_v2(**asked)
    return patient, reply["ResponseMetadata"]["HTTPHeaders"]


def explain_fault(error: Exception, bucket: str, where: str) -> StoreError:
    """Turn a fault of botocore into what the user can do about it."""
    code, status = code_of(error), status_of(error)
    if code == "NoSuchBucket":
        return BucketMissing(
            f"there is no bucket {bucket!r}.",
            where=where,
            remedy="Create the bucket, or correct store.uri or store.s3.endpoint_url.",
        )
    if code == "RequestTimeTooSkewed":
        offset = tell_clock_offset(headers_of(error))
        by = "too much" if offset is None else describe_offset(offset)
        return CredentialsRefused(
            f"this machine's clock differs from the store's: {by}.",
            where=where,
            remedy="Set the clock (NTP) and run again: it resumes.",
        )
    if code in _WRONG_REGION:
        return StoreError(
            f"the bucket lives in another region ({code}).",
            where=where,
            remedy="Set store.s3.region to the bucket's region.",
        )
    if code in _STALE_TOKEN:
        return CredentialsRefused(
            f"the session token is no longer accepted ({code}).",
            where=where,
            remedy="Renew it and run again: it resumes. A profile or role renews itself.",
        )
    if isinstance(error, _CREDENTIAL_FAULTS) or status in (401, 403):
        return CredentialsRefused(
            f"the store refused the credentials, or grants them too little ({code}).",
            where=where,
            remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
            "store.s3.credentials_block; allow Get and Put on the prefix and List of it.",
        )
    if isinstance(error, CONNECTION_FAULTS) or status >= 500 or status == 429:
        return StoreUnreachable(
            f"the store does not answer as it should ({code}).",
            where=where,
            remedy="Check store.s3.endpoint_url and the network, then run again: it resumes.",
        )
    return StoreError(
        f"the store refused the request ({code}): {error}",
        where=where,
        remedy="Check store.uri and store.s3 against what the endpoint expects.",
    )


def tell_clock_offset(headers: Mapping[str, str]) -> float | None:
    """Tell by how many seconds this machine's clock is ahead of a reply's Date; None without one.

    The Date counts whole seconds, and the way back takes some time.
    """
    try:
        date = parsedate_to_datetime(headers.get("date", ""))
    except ValueError:
        return None
    return time.time() - date.timestamp()


def describe_offset(seconds: float) -> str:
    """Say which clock is ahead."""
    return f"it is {abs(seconds):,.0f} s {'ahead' if seconds > 0 else 'behind'}"


def headers_of(error: Exception) -> Mapping[str, str]:
    """Give the headers of the reply that was a fault; none where no answer came."""
    if isinstance(error, faults.ClientError):
        return error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return {}


def code_of(error: Exception) -> str:
    """Name a fault: S3's code, or the exception's type where there is none."""
    if isinstance(error, faults.ClientError):
        return error.response.get("Error", {}).get("Code", "")
    return type(error).__name__


def status_of(error: Exception) -> int:
    """Tell a fault's HTTP status; 0 where no answer came."""
    if isinstance(error, faults.ClientError):
        return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return 0
