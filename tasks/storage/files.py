"""A store in a folder: hard links make objects appear whole, and only where nothing stands.

Enters: keys and bytes. Leaves: files under the root, modes by the umask. A temporary file in the
same folder is written, flushed to disk and linked to its name: the link is atomic and fails where
the name exists; where there are no links, renameat2 does the same. Symbolic links under the root
are never followed, so that none planted there can lead a write elsewhere.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import io
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tasks.errors import BucketMissing, CredentialsRefused, KeyTaken, StoreError
from tasks.storage.layout import check_key, check_prefix
from tasks.storage.location import Location
from tasks.storage.record import ObjectStat
from tasks.storage.store import ArtifactStore

_BLOCK = 1 << 20
_NOREPLACE = 1
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileStore(ArtifactStore):
    """Objects as files under one folder; the folder itself appears with the first object."""

    def __init__(self, location: Location, protected: Iterable[str], *, n_threads: int) -> None:
        """Find the folder, following the links that lead to it.

        Raises:
            ProtectedPrefix: A link leads into a protected prefix.
            BucketMissing: A file stands where a folder is needed.
            CredentialsRefused: A folder above may not be entered.
        """
        super().__init__(location.uri, n_threads)
        try:
            self._root = Path(f"/{location.path}").resolve()
            nearest = next(f for f in (self._root, *self._root.parents) if f.exists())
        except OSError as error:
            raise self._explain(error) from error
        check_prefix(self._root.as_uri(), protected)
        if not nearest.is_dir():
            raise BucketMissing(
                f"{nearest} is a file where a folder is needed.",
                where=self.uri,
                remedy="Set store.uri to a folder.",
            )

    def create(self, key: str, data: bytes) -> ObjectStat:
        """Create an object, or find the same bytes there already."""
        return self._create(key, io.BytesIO(data))

    def create_file(self, key: str, path: Path) -> ObjectStat:
        """Create an object from a local file, streamed."""
        with path.open("rb") as source:
            return self._create(key, source)

    def get(self, key: str) -> bytes:
        """Read a whole object."""
        with self.open(key) as stream:
            return stream.read()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start`."""
        with self.open(key) as stream:
            stream.seek(start)
            return stream.read(length)

    def open(self, key: str) -> BinaryIO:
        """Open an object for streaming."""
        *folders, name = check_key(key).split("/")
        try:
            with self._folder(folders, key) as folder:
                handle = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder
                )
        except FileNotFoundError:
            raise FileNotFoundError(key) from None
        except OSError as error:
            raise self._explain(error, key) from error
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise FileNotFoundError(key)
        return os.fdopen(handle, "rb", buffering=_BLOCK)

    def head(self, key: str) -> ObjectStat | None:
        """Tell an object's size."""
        try:
            with self.open(key) as stream:
                return ObjectStat(key, os.fstat(stream.fileno()).st_size)
        except FileNotFoundError:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectStat]:
        """List the objects whose key begins with `prefix`; links and hidden files are none."""
        folder = prefix.rpartition("/")[0]
        segments = check_key(folder).split("/") if folder else []
        try:
            with self._folder(segments, prefix) as handle:
                found = list(self._walk(handle, f"{folder}/" if folder else "", prefix))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._explain(error, prefix) from error
        yield from sorted(found, key=lambda stat_: stat_.key)

    def list_folders(self) -> Iterator[str]:
        """Name the folders directly below the root, sorted; links and hidden ones are none."""
        try:
            with self._folder((), "") as handle, os.scandir(handle) as entries:
                names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._explain(error) from error
        yield from sorted(name for name in names if not name.startswith("."))

    def _walk(self, folder: int, above: str, prefix: str) -> Iterator[ObjectStat]:
        with os.scandir(folder) as entries:
            for entry in entries:
                key = above + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not f"{key}/".startswith(prefix):
                        continue
                    inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                    try:
                        yield from self._walk(inner, f"{key}/", prefix)
                    finally:
                        os.close(inner)
                elif entry.is_file(follow_symlinks=False) and key.startswith(prefix):
                    yield ObjectStat(key, entry.stat(follow_symlinks=False).st_size)

    def _create(self, key: str, source: BinaryIO) -> ObjectStat:
        *folders, name = check_key(key).split("/")
        try:
            with self._folder(folders, key, make=True) as folder:
                return self._write(key, source, folder, name)
        except OSError as error:
            raise self._explain(error, key) from error

    def _write(self, key: str, source: BinaryIO, folder: int, name: str) -> ObjectStat:
        temporary = f".{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        digest = hashlib.sha256()
        n_bytes = 0
        try:
            with os.fdopen(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as target:
                while block := source.read(_BLOCK):
                    digest.update(block)
                    n_bytes += target.write(block)
                target.flush()
                os.fsync(target.fileno())
            try:
                _put_in_place(temporary, name, folder)
            except FileExistsError:
                self._compare(key, n_bytes, digest.hexdigest())
            os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        return ObjectStat(key, n_bytes, digest.hexdigest())

    def _compare(self, key: str, n_bytes: int, sha256: str) -> None:
        try:
            there = self.open(key)
        except FileNotFoundError as error:
            # The name is taken, and by nothing that can be read.
            raise self._explain(NotADirectoryError(errno.ENOTDIR, ""), key) from error
        with there:
            digest = hashlib.sha256()
            while block := there.read(_BLOCK):
                digest.update(block)
            if there.tell() == n_bytes and digest.hexdigest() == sha256:
                return
        raise KeyTaken("other bytes stand at this key.", where=f"{self.uri}/{key}")

    @contextmanager
    def _folder(self, segments: Iterable[str], key: str, *, make: bool = False) -> Iterator[int]:
        if make and not self._root.exists():
            self._root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._root, _FOLDER)
        try:
            for segment in segments:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(segment, 0o777, dir_fd=handle)
                        os.fsync(handle)
                inner = os.open(segment, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle
        finally:
            os.close(handle)

    def _explain(self, error: OSError, key: str = "") -> StoreError:
        where = f"{self.uri}/{key}"
        match error.errno:
            case errno.ELOOP | errno.ENOTDIR:
                what = "a symbolic link, a file or a folder stands where another of them belongs."
                return StoreError(what, where=where, remedy="Remove it, or use another prefix.")
            case errno.EACCES | errno.EROFS:
                what = f"the file system refused: {error.strerror}."
                return CredentialsRefused(what, where=where, remedy="Give this user permission.")
            case errno.EPERM | errno.ENOTSUP | errno.EMLINK | errno.EXDEV | errno.ENOSYS:
                what = "the file system has neither hard links nor renaming that replaces nothing."
                remedy = "Set store.uri to a folder on a local file system, or use S3."
                return StoreError(what, where=where, remedy=remedy)
            case errno.ENOSPC | errno.EDQUOT:
                return StoreError("no space is left.", where=where, remedy="Free some space.")
            case _:
                what = f"the file system failed: {error.strerror or error}."
                return StoreError(what, where=where, remedy="See the system's log (dmesg).")


def _put_in_place(temporary: str, name: str, folder: int) -> None:
    """Give a finished file its name, where nothing has that name.

    Raises:
        FileExistsError: Something has it.
    """
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if _is_same_file(temporary, name, folder):
            return  # NFS lost the reply, and not the link
        if error.errno not in _NO_LINKS or not _rename_onto_nothing(temporary, name, folder):
            raise


def _is_same_file(one: str, other: str, folder: int) -> bool:
    try:
        stats = [os.stat(n, dir_fd=folder, follow_symlinks=False) for n in (one, other)]
    except FileNotFoundError:
        return False
    return os.path.samestat(*stats)


def _rename_onto_nothing(temporary: str, name: str, folder: int) -> bool:
    """Rename where the kernel and the file system can refuse to replace; False where they cannot.

    Source: renameat2(2).
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(folder, os.fsencode(temporary), folder, os.fsencode(name), _NOREPLACE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.EEXIST:
        raise FileExistsError(code, os.strerror(code), name)
    return False
