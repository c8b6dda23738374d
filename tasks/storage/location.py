"""A place for data: a prefix taken apart, and what makes a path no path.

Enters: a uri or a key as somebody wrote it. Leaves: a Location, or what is wrong with it. Pure. It
exists so that every prefix and every key is held to the same rule before it is joined to another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tasks.errors import StoreError

MAX_KEY_BYTES = 1024
MAX_SEGMENT_BYTES = 240  # a file name holds 255, and the file store adds a suffix while it writes


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
        fault = find_fault(path) if path else ""
    if fault:
        raise StoreError(
            f"this is no place for data: {fault}.",
            where=repr(uri),
            remedy="Set store.uri to s3://BUCKET/PREFIX or file:///FOLDER.",
        )
    return Location(scheme, bucket, tuple(path.split("/")) if path else ())


def find_fault(path: str) -> str:
    """Say why a path cannot be used; an empty string where it can."""
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
