"""Each fault of S3 becomes the error that the user can act on, told by code and type."""

import pytest
from botocore import exceptions as faults

from tasks.errors import BucketMissing, CredentialsRefused, StoreError, StoreUnreachable
from tasks.storage.s3_client import explain_fault


def make_fault(code: str, status: int) -> faults.ClientError:
    return faults.ClientError(
        {
            "Error": {"Code": code, "Message": "NoSuchBucket AccessDenied SlowDown"},
            "ResponseMetadata": {"HTTPStatusCode": status},  # type: ignore[typeddict-item]
        },
        "PutObject",
    )


@pytest.mark.parametrize(
    ("fault", "expected", "remedy"),
    [
        (make_fault("NoSuchBucket", 404), BucketMissing, "Create the bucket"),
        (make_fault("AccessDenied", 403), CredentialsRefused, "allow Get and Put"),
        (make_fault("InvalidAccessKeyId", 403), CredentialsRefused, "AWS_ACCESS_KEY_ID"),
        (make_fault("SignatureDoesNotMatch", 403), CredentialsRefused, "AWS_ACCESS_KEY_ID"),
        (make_fault("ExpiredToken", 400), CredentialsRefused, "Renew"),
        (make_fault("RequestTimeTooSkewed", 403), CredentialsRefused, "clock"),
        (faults.NoCredentialsError(), CredentialsRefused, "AWS_ACCESS_KEY_ID"),
        (faults.ProfileNotFound(profile="p"), CredentialsRefused, "AWS_ACCESS_KEY_ID"),
        (make_fault("SlowDown", 503), StoreUnreachable, "run again"),
        (make_fault("InternalError", 500), StoreUnreachable, "run again"),
        (faults.EndpointConnectionError(endpoint_url="u"), StoreUnreachable, "endpoint_url"),
        (faults.ConnectTimeoutError(endpoint_url="u"), StoreUnreachable, "endpoint_url"),
        (faults.ReadTimeoutError(endpoint_url="u"), StoreUnreachable, "endpoint_url"),
        (make_fault("PermanentRedirect", 301), StoreError, "store.s3.region"),
        (make_fault("InvalidArgument", 400), StoreError, "store.s3"),
    ],
)
def test_a_fault_is_told_by_its_code_and_type(
    fault: Exception, expected: type[StoreError], remedy: str
) -> None:
    error = explain_fault(fault, "bucket", "s3://bucket/run at AWS")
    assert type(error) is expected
    assert remedy in error.remedy
    assert error.where == "s3://bucket/run at AWS"
