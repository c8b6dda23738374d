"""The face of the store: create-only put, get and list under one prefix, on S3 or in a folder.

Enters: a StoreConfig and, for S3, credentials. Leaves: an ArtifactStore that has no way to
overwrite and none to delete. It exists so that the promise "an earlier dataset is never written
over" is kept in one place, and shown to hold on the server at hand before a run begins.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ParamSpec, TypeVar

from pydantic import SecretStr

from tasks.storage.config import StoreConfig
from tasks.storage.layout import check_prefix
from tasks.storage.record import ObjectStat, PartReceipt

P = ParamSpec("P")
R = TypeVar("R")

_FILE_THREADS = 8


@dataclass(frozen=True, slots=True)
class AssumedRole:
    """A role to act as; its keys are renewed for as long as the run lasts.

    Attributes:
        arn: The role.
        options: Further parameters of AssumeRole by their AWS names (`ExternalId`, ...).
    """

    arn: str
    options: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Keys read from a block; what is left out, boto3's own chain finds (environment, profile).

    With a role, the keys are those that may assume it.
    """

    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    session_token: SecretStr | None = None
    profile: str | None = None
    role: AssumedRole | None = None


class ArtifactStore(ABC):
    """Objects under one prefix, each written once.

    Keys are relative to the prefix and checked by the layout (ValueError for one that is none).
    Methods block and may be called from any thread; `run` calls them from a coroutine. Each may
    raise CredentialsRefused, StoreUnreachable or another StoreError.

    Attributes:
        uri: The prefix, without a trailing slash.
        known_parts: Parts that this process wrote or read whole, by key: written once, they
            need not be read again.
        damaged: Keys that were found damaged; who looks for a part or for samples passes them
            over, so that a revision is made.
    """

    def __init__(self, uri: str, n_threads: int) -> None:
        """Prepare the pool.

        Args:
            uri: The prefix, without a trailing slash.
            n_threads: Transfers at once.
        """
        self.uri = uri
        self.known_parts: dict[str, PartReceipt] = {}
        self.damaged: set[str] = set()
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="store")

    @abstractmethod
    def create(self, key: str, data: bytes) -> ObjectStat:
        """Create an object, or find the same bytes there already.

        Raises:
            KeyTaken: Other bytes stand there; they are left as they are.
        """

    @abstractmethod
    def create_file(self, key: str, path: Path) -> ObjectStat:
        """Create an object from a local file, streamed; else as `create`."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Read a whole object.

        Raises:
            FileNotFoundError: There is no such object.
        """

    @abstractmethod
    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`; fewer, or none, where the object ends.

        Raises:
            FileNotFoundError: There is no such object.
        """

    @abstractmethod
    def open(self, key: str) -> BinaryIO:
        """Open an object for streaming; the caller closes it.

        Raises:
            FileNotFoundError: There is no such object.
        """

    @abstractmethod
    def head(self, key: str) -> ObjectStat | None:
        """Tell an object's size; None if there is no such object."""

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """List the objects whose key begins with `prefix`, sorted by key."""

    @abstractmethod
    def list_folders(self) -> Iterator[str]:
        """Name the folders directly below the prefix as they are found, without what is in them."""

    async def run(self, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a blocking function in the store's own pool of threads."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: fn(*args, **kwargs))

    def close(self) -> None:
        """Wait for transfers under way and let the threads go."""
        self._pool.shutdown()


def open_store(config: StoreConfig, credentials: S3Credentials | None = None) -> ArtifactStore:
    """Open the store of a run and make sure that it answers.

    Raises:
        ProtectedPrefix: The prefix equals, contains or lies within a protected one.
        BucketMissing: The bucket, or a folder to write in, does not exist.
        CredentialsRefused: The store does not let us in.
        StoreUnreachable: The store does not answer.
        StoreError: The uri or the connection settings are malformed.
    """
    location = check_prefix(config.uri, config.protected)
    if location.scheme == "file":
        from tasks.storage.files import FileStore  # noqa: PLC0415  (it imports this module)

        return FileStore(location, config.protected, n_threads=_FILE_THREADS)
    from tasks.storage.s3 import S3Store  # noqa: PLC0415  (boto3 takes a second to import)
    from tasks.storage.unique import UniqueKeyStore, holds_unique_keys  # noqa: PLC0415

    store = S3Store(location, config.s3, credentials)
    return UniqueKeyStore(store) if holds_unique_keys(store) else store
