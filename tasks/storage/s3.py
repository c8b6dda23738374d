"""A store in an S3 bucket: conditional puts from boto3, and errors by their codes.

Enters: keys and bytes. Leaves: objects made with `If-None-Match: *` and Content-MD5 in one PUT
each, never by multipart upload: some servers ignore the condition when one is completed. A 412
for our own write, whose first reply was lost, is told from another's by size and sha256.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

from botocore import exceptions as faults

from tasks.errors import KeyTaken, OverwritePossible, StoreError
from tasks.storage.config import S3Config
from tasks.storage.layout import check_key
from tasks.storage.location import Location
from tasks.storage.record import ObjectStat
from tasks.storage.s3_client import (
    CONNECTION_FAULTS,
    code_of,
    describe_offset,
    explain_fault,
    greet,
    status_of,
    tell_clock_offset,
)
from tasks.storage.store import ArtifactStore, S3Credentials

_log = logging.getLogger(__name__)

T = TypeVar("T")

_BLOCK = 1 << 20
_LARGEST_PUT = 5 * 1024**3  # S3's limit of a single PUT
_PUT_TRIES = 6
_STREAM_TRIES = 5
_GET_TRIES = 3
_CLOCK_SECONDS = 60.0
_NO_KEY = {"NoSuchKey", "404", "NotFound"}


class S3Store(ArtifactStore):
    """Objects under one prefix of one bucket."""

    def __init__(
        self, location: Location, config: S3Config, credentials: S3Credentials | None
    ) -> None:
        """Connect and list one key, which shows bucket, credentials and endpoint to be right."""
        super().__init__(location.uri, config.max_connections)
        self._bucket = location.bucket
        self._prefix = f"{location.path}/" if location.segments else ""
        self._place = config.endpoint_url or "AWS"
        self._client, headers = self._call(
            lambda: greet(config, credentials, self._bucket, self._prefix)
        )
        self._warn_of_clock(headers)

    def create(self, key: str, data: bytes) -> ObjectStat:
        """Create an object, or find the same bytes there already."""
        return self._create(key, io.BytesIO(data))

    def create_file(self, key: str, path: Path) -> ObjectStat:
        """Create an object from a local file, streamed."""
        with path.open("rb") as source:
            return self._create(key, source)

    def get(self, key: str) -> bytes:
        """Read a whole object; asked for again where its bytes are not those that were written."""
        n_left = _GET_TRIES
        while True:
            n_left -= 1
            with _ResumingStream(self, key, 0, None) as stream:
                data = b"".join(iter(lambda: stream.read(_BLOCK), b""))
                wanted = stream.sha256
            # An object that is damaged at rest is given as it is: who asked will judge it.
            if not n_left or wanted in (None, hashlib.sha256(data).hexdigest()):
                return data
            _log.warning("%s/%s: other bytes came than were written; once more", self.uri, key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        if length <= 0:
            return b""
        stream = _ResumingStream(self, key, start, start + length)
        with io.BufferedReader(stream, _BLOCK) as reader:
            return reader.read(length)

    def open(self, key: str) -> BinaryIO:
        """Open an object for streaming; a broken connection is taken up where it broke."""
        return cast("BinaryIO", io.BufferedReader(_ResumingStream(self, key, 0, None), _BLOCK))

    def head(self, key: str) -> ObjectStat | None:
        """Tell an object's size, and the sha256 that its writer gave."""
        full = self._full(key)
        try:
            reply = self._client.head_object(Bucket=self._bucket, Key=full)
        except faults.ClientError as error:
            if status_of(error) == 404:
                return None
            if status_of(error) != 403:
                raise self.explain(error, key) from error
            # A policy that conditions listing on s3:prefix answers 403 for a missing key.
            return next((found for found in self.list(key) if found.key == key), None)
        except faults.BotoCoreError as error:
            raise self.explain(error, key) from error
        return ObjectStat(key, reply["ContentLength"], _sha256_in(reply["Metadata"]))

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """List the objects whose key begins with `prefix`, sorted by key."""
        pages = self._page(prefix)
        # Some servers list in the order of folders: sorted here, whatever they do.
        yield from sorted(
            self._call(
                lambda: [
                    ObjectStat(
                        entry["Key"].removeprefix(self._prefix),
                        entry["Size"],
                        modified_at=entry["LastModified"].timestamp(),
                    )
                    for page in pages
                    for entry in page.get("Contents", [])
                ],
                prefix,
            ),
            key=lambda found: found.key,
        )

    def list_folders(self) -> Iterator[str]:
        """Name the folders directly below the prefix, page by page."""
        found = self._page("", Delimiter="/").search("CommonPrefixes[].Prefix || `[]`")
        while (folder := self._call(lambda: next(found, None))) is not None:
            yield folder.removeprefix(self._prefix).removesuffix("/")

    def fetch(self, key: str, start: int, end: int | None) -> tuple[IO[bytes] | None, str | None]:
        """Ask for the bytes [start, end) of an object; None where it ends before `start`.

        With them comes the sha256 that the object's writer gave, if any.
        """
        full = self._full(key)
        try:
            if (start, end) == (0, None):
                # Without a range: an empty object has none that could be asked for.
                reply = self._client.get_object(Bucket=self._bucket, Key=full)
            else:
                span = f"bytes={start}-{'' if end is None else end - 1}"
                reply = self._client.get_object(Bucket=self._bucket, Key=full, Range=span)
        except faults.ClientError as error:
            if code_of(error) in _NO_KEY:
                raise FileNotFoundError(key) from None
            if status_of(error) == 416:
                return None, None
            raise self.explain(error, key) from error
        except faults.BotoCoreError as error:
            raise self.explain(error, key) from error
        return cast("IO[bytes]", reply["Body"]), _sha256_in(reply["Metadata"])

    def explain(self, error: Exception, key: str = "") -> StoreError:
        """Turn a fault of botocore into what the user can do about it."""
        where = f"s3://{self._bucket}/{self._prefix}{key} at {self._place}"
        return explain_fault(error, self._bucket, where)

    def _create(self, key: str, source: BinaryIO) -> ObjectStat:
        full = self._full(key)
        sha256, md5, n_bytes = _digest(source)
        if n_bytes > _LARGEST_PUT:
            raise StoreError(
                f"{n_bytes} bytes are more than one PUT takes (5 GiB).",
                where=f"{self.uri}/{key}",
                remedy="Make the files smaller, by merge.rows_per_shard or extraction.chunk_size.",
            )
        for attempt in range(_PUT_TRIES):
            if attempt:
                time.sleep(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311  (jitter)
            source.seek(0)
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=full,
                    Body=source,
                    ContentMD5=md5,
                    IfNoneMatch="*",
                    Metadata={"sha256": sha256},
                )
            except faults.ClientError as error:
                if status_of(error) == 412:
                    if self._holds(key, n_bytes, sha256):
                        return ObjectStat(key, n_bytes, sha256)
                elif status_of(error) != 409:
                    raise self.explain(error, key) from error
            except faults.BotoCoreError as error:
                raise self.explain(error, key) from error
            else:
                return ObjectStat(key, n_bytes, sha256)
        raise OverwritePossible(
            "the store refuses to create an object that it does not hold: it does not honour "
            "`If-None-Match: *`, or another writer keeps the key busy.",
            where=f"{self.uri}/{key}",
            remedy="Run again; if it stays so, use another store.",
        )

    def _holds(self, key: str, n_bytes: int, sha256: str) -> bool:
        there = self.head(key)
        if there is None:
            return False
        if there.n_bytes == n_bytes:
            recorded = there.sha256
            if recorded is None:
                with self.open(key) as stream:
                    recorded = _digest(stream)[0]
            if recorded == sha256:
                return True
        raise KeyTaken("other bytes stand at this key.", where=f"{self.uri}/{key}")

    def _warn_of_clock(self, headers: Mapping[str, str]) -> None:
        offset = tell_clock_offset(headers)
        if offset is not None and abs(offset) > _CLOCK_SECONDS:
            _log.warning(
                "%s: this machine's clock differs from the store's: %s; at a quarter of an hour "
                "requests are refused. Set the clock (NTP).",
                self.uri,
                describe_offset(offset),
            )

    def _page(self, prefix: str, **how: Any) -> Any:
        paginator = self._client.get_paginator("list_objects_v2")
        return paginator.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, **how)

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _call(self, call: Callable[[], T], key: str = "") -> T:
        try:
            return call()
        except (faults.ClientError, faults.BotoCoreError) as error:
            raise self.explain(error, key) from error


class _ResumingStream(io.RawIOBase):
    """The bytes [start, end) of an object, asked for again from where a connection broke."""

    def __init__(self, store: S3Store, key: str, start: int, end: int | None) -> None:
        super().__init__()
        self._store, self._key, self._position, self._end = store, key, start, end
        self._body, self.sha256 = store.fetch(key, start, end)
        self._n_broken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        while self._body is not None:
            try:
                data = self._body.read(len(buffer))
            except CONNECTION_FAULTS as error:
                self._n_broken += 1
                if self._n_broken >= _STREAM_TRIES:
                    raise self._store.explain(error, self._key) from error
                self._body.close()
                self._body, _ = self._store.fetch(self._key, self._position, self._end)
                continue
            buffer[: len(data)] = data
            self._position += len(data)
            return len(data)
        return 0

    def close(self) -> None:
        """Give the connection back."""
        if self._body is not None:
            self._body.close()
        super().close()


def _sha256_in(metadata: Mapping[str, str]) -> str | None:
    return {name.lower(): value for name, value in metadata.items()}.get("sha256")


def _digest(source: BinaryIO) -> tuple[str, str, int]:
    """Give sha256 in hex, MD5 in base64 and the size in bytes, in one pass."""
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    n_bytes = 0
    while block := source.read(_BLOCK):
        sha256.update(block)
        md5.update(block)
        n_bytes += len(block)
    return sha256.hexdigest(), base64.b64encode(md5.digest()).decode(), n_bytes
