"""The one place where keys and prefixes are made and checked; pure.

Enters: numbers, hashes and names, some of them written by strangers. Leaves: keys relative to the
run's prefix, and parsed prefixes. It exists so that no other file joins a key by hand: a key that
could leave the prefix, or a prefix that touches a protected one, is refused here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tasks.errors import ProtectedPrefix, StoreError

MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 240  # a file name holds 255, and the file store adds a suffix while it writes

_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_HEX = re.compile(r"[0-9a-f]+")
_DATA_KEY = re.compile(r"data/part-([0-9]{6,})(?:\.r([1-9][0-9]*))?\.jsonl\.zst", re.ASCII)
_MANIFEST_KEY = re.compile(r"_manifest/r([0-9]{4,})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed prefix: `bucket` is empty for file://; `segments` are its folders from the root."""

    scheme: str
    bucket: str
    segments: tuple[str, ...]

    @property
    def uri(self) -> str:
        """The prefix as a uri, without a trailing slash."""
        # Spaces and the like are escaped in file uris (RFC 8089); S3 keys are taken as they are.
        shown = [quote(s) for s in self.segments] if self.scheme == "file" else self.segments
        return "/".join([f"{self.scheme}://{self.bucket}", *shown])

    @property
    def path(self) -> str:
        """The segments joined: an S3 key prefix, or a file path without its leading slash."""
        return "/".join(self.segments)

    def overlaps(self, other: Location) -> bool:
        """Whether one of the two equals, contains or lies within the other."""
        n_common = min(len(self.segments), len(other.segments))
        return (self.scheme, self.bucket, self.segments[:n_common]) == (
            other.scheme,
            other.bucket,
            other.segments[:n_common],
        )


def parse_uri(uri: str) -> Location:
    """Parse `s3://bucket/prefix` or `file:///folder`; a trailing slash is allowed.

    Raises:
        StoreError: Another scheme, no bucket, a relative folder, or a path with `..`, empty
            segments, backslashes or control characters.
    """
    scheme, separator, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    fault = ""
    if not separator or scheme not in ("s3", "file"):
        fault = "the scheme must be s3:// or file://"
    elif scheme == "s3" and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", bucket):
        fault = "s3:// must be followed by the name of a bucket"
    elif scheme == "file" and bucket:
        fault = "file:// must be followed by an absolute path (three slashes in all)"
    else:
        path = path.removesuffix("/")
        if scheme == "file":
            path = unquote(path, errors="surrogateescape")
        fault = _fault_of(path) if path else ""
    if fault:
        raise StoreError(
            f"this is no place for data: {fault}.",
            where=repr(uri),
            remedy="Set store.uri to s3://BUCKET/PREFIX or file:///FOLDER.",
        )
    return Location(scheme, bucket, tuple(path.split("/")) if path else ())


def check_key(key: str) -> str:
    """Return a key that stays within its prefix, unchanged.

    Raises:
        ValueError: `..`, an empty or hidden segment, a leading slash, a backslash, a control
            character, or a key that is too long or no UTF-8.
    """
    fault = _fault_of(key) or ("a segment begins with a dot" if "/." in f"/{key}" else "")
    if fault:
        raise ValueError(f"{key!r} is no key: {fault}")
    return key


def check_prefix(uri: str, protected: Iterable[str]) -> Location:
    """Parse a prefix that data may be written under.

    A protected prefix without a scheme counts from the bucket; for a file:// prefix it counts from
    every folder above the prefix, so that no folder called `completions` is ever entered.

    Raises:
        StoreError: The uri, or a protected one, is malformed.
        ProtectedPrefix: The prefix equals, contains or lies within a protected one.
    """
    location = parse_uri(uri)
    for entry in protected:
        if any(location.overlaps(shielded) for shielded in _locate_protected(location, entry)):
            raise ProtectedPrefix(
                f"the prefix equals, contains or lies within {entry!r}, which is protected.",
                where=location.uri,
                remedy="Choose another prefix for store.uri; data there is never written over.",
            )
    return location


def derive_prefix(root_uri: str, source_key: str, revision: str, asked_sha: str) -> str:
    """Name the prefix of a triggered run, so that a doubled event finds the first one's data."""
    commit = revision.lower()
    if not _HEX.fullmatch(commit) or len(commit) < 12:
        commit = hashlib.sha256(revision.encode("utf-8", "surrogatepass")).hexdigest()
    leaf = f"{source_segment(source_key)}@{commit[:12]}-{_check_hex(asked_sha)[:8]}"
    root = parse_uri(root_uri)
    return Location(root.scheme, root.bucket, (*root.segments, leaf)).uri


def derive_results_uri(uri: str, results_uri: str | None, protected: Iterable[str]) -> str:
    """Place Prefect's own results: they are overwritten by nature, so never within the run's.

    Raises:
        StoreError: The results' prefix overlaps the run's, or is malformed.
        ProtectedPrefix: The results' prefix overlaps a protected one.
    """
    run = parse_uri(uri)
    results = check_prefix(results_uri or f"{run.uri}-prefect-results", protected)
    if not results.segments or results.overlaps(run):
        raise StoreError(
            "Prefect's results are overwritten on retry and need a prefix outside of the run's.",
            where=results.uri,
            remedy="Set store.results_uri to a prefix beside store.uri, neither within the other.",
        )
    return results.uri


def source_segment(source: str) -> str:
    """Turn the name of a source into one safe segment; another name gives another segment."""
    if _SAFE_NAME.fullmatch(source):
        return source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", source[:200].lower()).strip("-")[:40]
    return f"{slug or 'source'}-{digest}"


def request_key() -> str:
    """What was asked and what it resolved to; the first object of a run."""
    return "_run/request.json"


def plan_key() -> str:
    """The plan: all that decides the answers."""
    return "_run/plan.json"


def probe_key() -> str:
    """The object that shows whether the store honours the create-only condition."""
    return "_run/create-only-probe"


def extracted_key(source: str, index: int) -> str:
    """The `index`-th file of prompts that a source gave."""
    return f"extracted/{source_segment(source)}/part-{_check_number(index):06d}.parquet"


def rejections_key(source: str) -> str:
    """The rows of a source that gave no prompt, and why."""
    return f"extracted/{source_segment(source)}/rejections.parquet"


def unsampled_key(source: str) -> str:
    """The rows of a source that were left out by its quota."""
    return f"extracted/{source_segment(source)}/unsampled.parquet"


def prompts_key(chunk_id: int) -> str:
    """The prompts of one chunk."""
    return f"prompts/part-{_check_number(chunk_id):06d}.parquet"


def data_prefix(chunk_id: int) -> str:
    """What the keys of every revision of a chunk's part begin with, and no other key."""
    return f"data/part-{_check_number(chunk_id):06d}."


def data_key(chunk_id: int, revision: int = 0) -> str:
    """The outcomes of one chunk; a revision above 0 replaces a damaged part."""
    suffix = f"r{revision}." if _check_number(revision) else ""
    return f"{data_prefix(chunk_id)}{suffix}jsonl.zst"


def parse_data_key(key: str) -> tuple[int, int] | None:
    """Read (chunk id, revision) from a data key; None if it is none."""
    match = _DATA_KEY.fullmatch(key)
    if match is None:
        return None
    chunk_id, revision = int(match[1]), int(match[2] or 0)
    return (chunk_id, revision) if data_key(chunk_id, revision) == key else None


def tokens_key(digest: str, data_key: str, data_sha256: str, revision: int = 0) -> str:
    """The samples made from one data part under the token settings of `digest`.

    A revision above 0 replaces damaged samples of the same part.
    """
    if parse_data_key(data_key) is None:
        raise ValueError(f"{data_key!r} is no key of a data part")
    name = data_key.removeprefix("data/").removesuffix(".jsonl.zst")
    suffix = f".r{revision}" if _check_number(revision) else ""
    return f"tokens/{_check_hex(digest)}/{name}-{_check_hex(data_sha256)[:12]}{suffix}.parquet"


def shard_key(dataset_revision: int, index: int) -> str:
    """One file of the merged dataset."""
    return f"dataset/r{_check_number(dataset_revision):04d}/part-{_check_number(index):06d}.parquet"


def report_key(dataset_revision: int) -> str:
    """The report on one revision of the dataset."""
    return f"report/r{_check_number(dataset_revision):04d}/index.html"


def canary_key() -> str:
    """The preview of the canary's samples."""
    return "report/canary.html"


def manifest_prefix() -> str:
    """What the keys of all manifests begin with."""
    return "_manifest/"


def manifest_key(revision: int) -> str:
    """One manifest; the highest valid one counts."""
    return f"{manifest_prefix()}r{_check_number(revision):04d}.json"


def parse_manifest_key(key: str) -> int | None:
    """Read the revision from a manifest's key; None if it is none."""
    match = _MANIFEST_KEY.fullmatch(key)
    if match is None or manifest_key(int(match[1])) != key:
        return None
    return int(match[1])


def _fault_of(path: str) -> str:
    segments = path.split("/")
    try:
        sizes = [len(segment.encode()) for segment in segments]
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    if "" in segments:
        return "it has an empty segment"
    if "." in segments or ".." in segments:
        return "it has a segment `.` or `..`"
    if "\\" in path or any(ord(c) < 32 or 127 <= ord(c) < 160 for c in path):
        return "it has a backslash or a control character"
    if max(sizes) > MAX_SEGMENT_BYTES or sum(sizes) + len(sizes) > MAX_KEY_BYTES:
        return "it is too long"
    return ""


def _locate_protected(location: Location, entry: str) -> list[Location]:
    if "://" in entry:
        return [parse_uri(entry)]
    if location.scheme == "s3":
        return [parse_uri(f"s3://{location.bucket}/{entry.strip('/')}")]
    relative = parse_uri(f"file:///{entry.strip('/')}").segments
    above = range(max(len(location.segments), 1))
    return [Location("file", "", (*location.segments[:depth], *relative)) for depth in above]


def _check_number(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative: keys count from 0")
    return number


def _check_hex(digest: str) -> str:
    if len(digest) < 8 or not _HEX.fullmatch(digest):
        raise ValueError(f"{digest!r} is no lower-case hex digest")
    return digest
