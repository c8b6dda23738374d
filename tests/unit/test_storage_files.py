"""A folder as a store: whole files, modes by the umask, and no link followed."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.errors import BucketMissing, KeyTaken, ProtectedPrefix, StoreError
from tasks.storage.config import StoreConfig
from tasks.storage.store import ArtifactStore, open_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store" / "run"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "secret").write_bytes(b"kept")
    return folder


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def test_opening_alone_writes_nothing(file_store: ArtifactStore, root: Path) -> None:
    assert file_store.head("x") is None
    assert not root.exists()


@pytest.mark.usefixtures("open_umask")
def test_modes_are_the_umasks(file_store: ArtifactStore, root: Path) -> None:
    file_store.create("data/one", b"x")
    assert (root / "data" / "one").stat().st_mode & 0o777 == 0o640
    assert (root / "data").stat().st_mode & 0o777 == 0o750


def test_nothing_but_the_objects_is_left_behind(file_store: ArtifactStore, root: Path) -> None:
    file_store.create("data/one", b"x")
    file_store.create("data/one", b"x")
    with pytest.raises(Exception, match="other bytes"):
        file_store.create("data/one", b"y")
    assert os.listdir(root / "data") == ["one"]  # noqa: PTH208  (hidden files count)
    assert (root / "data" / "one").stat().st_nlink == 1


def test_a_write_that_died_half_way_is_no_object(file_store: ArtifactStore, root: Path) -> None:
    file_store.create("data/one", b"x")
    (root / "data" / ".0123456789abcdef.tmp").write_bytes(b"half")
    assert [stat.key for stat in file_store.list()] == ["data/one"]


def test_a_linked_folder_is_never_entered(
    file_store: ArtifactStore, root: Path, elsewhere: Path
) -> None:
    root.mkdir(parents=True)
    (root / "data").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="symbolic link"):
        file_store.create("data/one", b"x")
    with pytest.raises(StoreError, match="symbolic link"):
        file_store.get("data/secret")
    assert list(file_store.list()) == []
    assert [path.name for path in elsewhere.iterdir()] == ["secret"]


def test_a_linked_object_is_neither_read_nor_replaced(
    file_store: ArtifactStore, root: Path, elsewhere: Path
) -> None:
    (root / "data").mkdir(parents=True)
    (root / "data" / "one").symlink_to(elsewhere / "secret")
    (root / "data" / "two").symlink_to(elsewhere / "absent")
    for key in ("data/one", "data/two"):
        with pytest.raises(StoreError, match="symbolic link"):
            file_store.create(key, b"x")
        with pytest.raises(StoreError, match="symbolic link"):
            file_store.get(key)
    assert (elsewhere / "secret").read_bytes() == b"kept"
    assert not (elsewhere / "absent").exists()


def test_a_link_to_the_store_is_followed_but_not_into_what_is_protected(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "completions").mkdir()
    (tmp_path / "fine").symlink_to(tmp_path / "real")
    (tmp_path / "sly").symlink_to(tmp_path / "completions")
    store = open_store(StoreConfig(uri=f"file://{tmp_path}/fine"))
    store.create("key", b"x")
    assert (tmp_path / "real" / "key").read_bytes() == b"x"
    with pytest.raises(ProtectedPrefix):
        open_store(StoreConfig(uri=f"file://{tmp_path}/sly/run"))


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BucketMissing) as caught:
        open_store(StoreConfig(uri=f"file://{tmp_path}/file"))
    assert str(tmp_path / "file") in caught.value.what


def test_a_folder_is_no_object(file_store: ArtifactStore) -> None:
    file_store.create("data/one", b"x")
    assert file_store.head("data") is None
    with pytest.raises(FileNotFoundError):
        file_store.get("data")


def test_a_folder_where_an_object_belongs_is_named(file_store: ArtifactStore, root: Path) -> None:
    (root / "_run/plan.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="a folder stands where another") as told:
        file_store.create("_run/plan.json", b"{}")
    assert told.value.where.endswith("_run/plan.json")
    assert [path.name for path in (root / "_run").iterdir()] == ["plan.json"]


def refuse_links(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS])
def test_without_hard_links_renaming_takes_their_place_and_replaces_nothing(
    file_store: ArtifactStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_links(monkeypatch, code)
    file_store.create("data/one", b"first")
    assert file_store.create("data/one", b"first").n_bytes == 5
    with pytest.raises(KeyTaken):
        file_store.create("data/one", b"other")
    assert file_store.get("data/one") == b"first"
    assert [path.name for path in (root / "data").iterdir()] == ["one"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS])
def test_a_file_system_that_can_neither_link_nor_rename_safely_is_refused(
    file_store: ArtifactStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    refuse_links(monkeypatch, code)
    monkeypatch.setattr("tasks.storage.files._rename_onto_nothing", lambda *_: False)
    with pytest.raises(StoreError, match="neither hard links nor renaming") as told:
        file_store.create("data/one", b"x")
    assert "local file system" in told.value.remedy
    assert list((root / "data").iterdir()) == []


def test_a_link_whose_reply_was_lost_is_known_by_its_inode(
    file_store: ArtifactStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = os.link

    def link(source: str, target: str, **options: Any) -> None:
        made(source, target, **options)
        raise OSError(errno.EIO, "the reply was lost")

    monkeypatch.setattr(os, "link", link)
    file_store.create("data/one", b"ours")
    assert (root / "data/one").read_bytes() == b"ours"
