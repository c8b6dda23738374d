"""The least that a run needs of its bucket, as a policy; pure.

Enters: a StoreConfig, and whom the policy is for. Leaves: a policy document, a lifecycle document,
and a reason for each statement. It exists so that the promise never to overwrite does not rest on
this code alone: the bucket itself refuses.

Source: AWS, "Enforce conditional writes on Amazon S3 buckets"; actions of Amazon S3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.errors import ConfigError, ConfigIssue
from tasks.storage.config import StoreConfig
from tasks.storage.layout import check_prefix, derive_results_uri
from tasks.storage.location import Location, parse_uri

_POLICY_VERSION = "2012-10-17"
_ABANDONED_DAYS = 7


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a policy, and why it stands there."""

    body: dict[str, Any]
    why: str


def make_policy(config: StoreConfig, principal: str | None = None) -> list[Statement]:
    """Make the statements for a run's prefix, its results and what is protected.

    Args:
        config: The store; its uri may be the root of triggered runs.
        principal: ARN that a bucket policy is about; None: a policy to attach to a role or user.

    Raises:
        ConfigError: The store is no bucket.
        ProtectedPrefix: The run's prefix, or that of the results, touches a protected one.
    """
    run = check_prefix(config.uri, config.protected)
    if run.scheme != "s3":
        raise ConfigError(
            "a policy is for a bucket:",
            issues=(ConfigIssue("-", "store.uri", f"{config.uri} is a folder, not s3://"),),
        )
    results = parse_uri(derive_results_uri(config.uri, config.results_uri, config.protected))
    statements = list(_list_statements(run, results, config))
    if principal is None:
        return statements
    return [Statement({**s.body, "Principal": {"AWS": principal}}, s.why) for s in statements]


def to_document(statements: list[Statement]) -> dict[str, Any]:
    """Write the statements as the JSON that AWS takes."""
    return {"Version": _POLICY_VERSION, "Statement": [s.body for s in statements]}


def make_lifecycle(config: StoreConfig) -> dict[str, Any]:
    """Make the rule that ends multipart uploads which nobody will complete.

    Data goes up in single PUTs; only Prefect's results may be uploaded in pieces.
    """
    results = parse_uri(derive_results_uri(config.uri, config.results_uri, config.protected))
    if results.scheme != "s3":
        return {"Rules": []}  # they lie in a folder, and data goes up in one piece
    return {
        "Rules": [
            {
                "ID": "draftmill-abort-incomplete-uploads",
                "Status": "Enabled",
                "Filter": {"Prefix": f"{results.path}/"},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": _ABANDONED_DAYS},
            }
        ]
    }


def _list_statements(run: Location, results: Location, config: StoreConfig) -> Iterator[Statement]:
    prefixes = [_below(run)]
    own = [_arn(run)]
    if results.scheme == "s3":
        own.append(_arn(results))
    if results.bucket == run.bucket:
        prefixes.append(_below(results))
    elif results.scheme == "s3":
        yield _allow(
            "ListResults",
            ["s3:ListBucket"],
            _arn(results, bucket_only=True),
            "Finds Prefect's results in their own bucket.",
            {"StringLike": {"s3:prefix": [_below(results)]}},
        )
    yield _allow(
        "ListOwnPrefixes",
        ["s3:ListBucket"],
        _arn(run, bucket_only=True),
        "Finds what is done already. Only under the run's prefix and the results': other keys of "
        "the bucket are not shown. A HEAD of a missing key is then 403; Draftmill lists instead.",
        {"StringLike": {"s3:prefix": prefixes}},
    )
    yield _allow(
        "CreateAndReadData",
        ["s3:GetObject", "s3:PutObject"],
        _arn(run),
        "Writes and reads the run's objects, each in one PUT.",
    )
    if results.scheme == "s3":
        yield _allow(
            "WriteResults",
            ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"],
            _arn(results),
            "Prefect's own results: ordinary puts, overwritten when a task is tried again.",
        )
    yield _deny(
        "NeverOverwriteData",
        ["s3:PutObject"],
        [_arn(run)],
        "Refuses every PUT on the run's prefix that does not carry `If-None-Match`, whoever sends "
        "it. The second condition leaves the pieces of a multipart upload alone, whose completion "
        "is what creates.",
        {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
    )
    yield _deny(
        "NeverDelete",
        ["s3:DeleteObject", "s3:DeleteObjectVersion"],
        own,
        "Nothing is deleted. On a versioned bucket a delete marker would make a key free again, "
        "and create-only would no longer mean once.",
    )
    for number, entry in enumerate(config.protected):
        # As check_prefix reads it: without a scheme it counts from the bucket.
        uri = entry if "://" in entry else f"s3://{run.bucket}/{entry.strip('/')}"
        shielded = parse_uri(uri)
        if shielded.scheme != "s3":
            continue
        suffix = str(number + 1) if len(config.protected) > 1 else ""
        yield _deny(
            f"Protected{suffix}",
            ["s3:*"],
            [_arn(shielded), _arn(shielded).removesuffix("/*")],
            f"{entry} is protected: no reading, writing or deleting there, whatever else allows "
            "it.",
        )


def _arn(location: Location, *, bucket_only: bool = False) -> str:
    bucket = f"arn:aws:s3:::{location.bucket}"
    return bucket if bucket_only else f"{bucket}/{_below(location)}"


def _below(location: Location) -> str:
    """Match every key of a prefix; of a whole bucket, every key."""
    return f"{location.path}/*" if location.segments else "*"


def _allow(
    sid: str, actions: list[str], resource: str, why: str, condition: dict[str, Any] | None = None
) -> Statement:
    body = {"Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource}
    return Statement({**body, "Condition": condition} if condition else body, why)


def _deny(
    sid: str,
    actions: list[str],
    resources: list[str],
    why: str,
    condition: dict[str, Any] | None = None,
) -> Statement:
    body = {"Sid": sid, "Effect": "Deny", "Action": actions, "Resource": resources}
    return Statement({**body, "Condition": condition} if condition else body, why)
