"""A part tells what it holds, shows every damage, and yields to a twin that came first."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from tasks.errors import CorruptPart, KeyTaken
from tasks.storage import part
from tasks.storage.layout import data_key
from tasks.storage.store import ArtifactStore, open_store
from tests.support.parts import INPUT_SHA, PLAN_SHA, list_conversations, write_part
from tests.support.proxy import start_proxy
from tests.support.s3 import S3Server

CONVERSATIONS = list_conversations(40)
LONG = "long words " * 9000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "local.part"


def test_a_part_is_read_back_row_by_row(store: ArtifactStore, path: Path) -> None:
    rows = write_part(path, conversations=CONVERSATIONS, text=LONG, statuses=["failed", "partial"])
    receipt = part.publish_part(store, data_key(1), path, CONVERSATIONS)
    assert list(part.iter_rows(store, data_key(1))) == rows
    assert part.read_receipt(store, data_key(1)) == receipt
    assert part.peek(store, data_key(1)) == (receipt.header, receipt.footer)
    assert (receipt.footer.n_rows, receipt.footer.n_failed, receipt.footer.n_partial) == (40, 1, 1)
    assert receipt.n_bytes == path.stat().st_size


def test_the_ends_are_read_without_the_rows(store: ArtifactStore, path: Path) -> None:
    write_part(path, conversations=CONVERSATIONS)
    part.publish_part(store, data_key(1), path, CONVERSATIONS)
    counting = _CountingStore(store)
    part.peek(counting, data_key(1))  # type: ignore[arg-type]
    assert counting.n_ranges == 2
    assert counting.n_opened == 0


def test_the_zstd_command_prints_header_rows_and_footer(path: Path) -> None:
    binary = shutil.which("zstd")
    if binary is None:
        pytest.skip("no zstd command on this machine")
    rows = write_part(path, conversations=CONVERSATIONS, text=LONG)
    printed = subprocess.run([binary, "-dc", str(path)], capture_output=True, check=True).stdout
    lines = printed.splitlines()
    assert b"plan_sha" in lines[0]
    assert lines[1:-1] == rows
    assert b"rows_sha256" in lines[-1]


def _truncate(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _lose_the_last_byte(data: bytes) -> bytes:
    return data[:-1]


def _flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _append(data: bytes) -> bytes:
    return data + b"\0"


def _empty(_: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [_truncate, _lose_the_last_byte, _flip_a_bit, _append, _empty])
def test_damage_is_found_by_every_reader_of_rows(
    store: ArtifactStore, path: Path, damage: Callable[[bytes], bytes]
) -> None:
    write_part(path, conversations=CONVERSATIONS, text=LONG)
    store.create(data_key(1), damage(path.read_bytes()))
    with pytest.raises(CorruptPart) as caught:
        list(part.iter_rows(store, data_key(1)))
    assert data_key(1) in caught.value.where
    assert caught.value.remedy
    with pytest.raises(CorruptPart):
        part.read_receipt(store, data_key(1))
    found = part.find_part(store, 1, PLAN_SHA, INPUT_SHA)
    if found is not None:
        # By its ends alone it looks whole; whoever finishes the run reads it.
        assert not part.is_sound(store, found)
    assert part.find_part(store, 1, PLAN_SHA, INPUT_SHA) is None


def test_a_part_in_s3_is_found_without_its_rows_and_read_when_it_matters(
    seaweedfs: S3Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = seaweedfs.config("by-its-ends/run")
    write_part(path, conversations=CONVERSATIONS, text=LONG)
    first = open_store(config, seaweedfs.credentials)
    receipt = part.publish_part(first, data_key(1), path, CONVERSATIONS)
    with monkeypatch.context() as patch:
        patch.setattr(first, "open", None)
        assert part.is_sound(first, receipt), "what this process wrote is not read again"

    later = open_store(config, seaweedfs.credentials)
    read_whole: list[str] = []
    whole = later.open

    def open_and_note(key: str) -> BinaryIO:
        read_whole.append(key)
        return whole(key)

    monkeypatch.setattr(later, "open", open_and_note)
    assert part.find_part(later, 1, PLAN_SHA, INPUT_SHA) == receipt
    assert read_whole == []
    assert part.is_sound(later, receipt)
    assert read_whole == [data_key(1)]


def test_bytes_that_go_wrong_on_their_way_once_condemn_no_part(
    seaweedfs: S3Server, path: Path
) -> None:
    write_part(path, conversations=CONVERSATIONS, text=LONG)
    with start_proxy(int(seaweedfs.endpoint_url.rpartition(":")[2])) as proxy:
        config = seaweedfs.config("wrong-bytes/run", endpoint_url=proxy.url)
        store = open_store(config, seaweedfs.credentials)
        receipt = part.publish_part(store, data_key(1), path, CONVERSATIONS)
        store.known_parts.clear()
        for _ in range(3):  # header, footer and rows are asked for one after the other
            proxy.corrupt_reply("GET", 800)
        assert part.is_sound(store, receipt)
        assert proxy.n_broken
        assert store.damaged == set()
        store.close()


def test_a_part_at_the_key_of_another_chunk_is_found(store: ArtifactStore, path: Path) -> None:
    write_part(path, chunk_id=2, conversations=CONVERSATIONS)
    store.create_file(data_key(1), path)
    for read in (part.peek, part.read_receipt, lambda s, k: list(part.iter_rows(s, k))):
        with pytest.raises(CorruptPart, match="chunk 2"):
            read(store, data_key(1))


def test_a_twin_that_came_first_is_kept(store: ArtifactStore, path: Path, tmp_path: Path) -> None:
    write_part(tmp_path / "twin", conversations=CONVERSATIONS, text="theirs", statuses=["failed"])
    theirs = part.publish_part(store, data_key(1), tmp_path / "twin", CONVERSATIONS)
    write_part(path, conversations=CONVERSATIONS, text="ours")
    kept = part.publish_part(store, data_key(1), path, list(reversed(CONVERSATIONS)))
    assert kept == theirs
    assert b"theirs" in next(iter(part.iter_rows(store, data_key(1))))
    assert len(list(store.list("data/"))) == 1


def test_our_own_part_published_again_gives_the_same_receipt(
    store: ArtifactStore, path: Path
) -> None:
    write_part(path, conversations=CONVERSATIONS)
    first = part.publish_part(store, data_key(1), path, CONVERSATIONS)
    assert part.publish_part(store, data_key(1), path, CONVERSATIONS) == first


def test_the_part_of_another_plan_stops_the_run(
    store: ArtifactStore, path: Path, tmp_path: Path
) -> None:
    write_part(tmp_path / "foreign", conversations=CONVERSATIONS, plan_sha="ef" * 32)
    store.create_file(data_key(1), tmp_path / "foreign")
    write_part(path, conversations=CONVERSATIONS)
    with pytest.raises(KeyTaken, match="another plan"):
        part.publish_part(store, data_key(1), path, CONVERSATIONS)
    with pytest.raises(KeyTaken, match="another plan"):
        part.find_part(store, 1, PLAN_SHA, INPUT_SHA)


@pytest.mark.parametrize(
    "there", [CONVERSATIONS[:-1], [*CONVERSATIONS, CONVERSATIONS[0]], [("stranger", 0)]]
)
def test_a_twin_that_lacks_or_doubles_conversations_stops_the_run(
    store: ArtifactStore, path: Path, tmp_path: Path, there: list[tuple[str, int]]
) -> None:
    write_part(tmp_path / "twin", conversations=there, text="theirs")
    store.create_file(data_key(1), tmp_path / "twin")
    write_part(path, conversations=CONVERSATIONS)
    with pytest.raises(KeyTaken, match="lacks or doubles"):
        part.publish_part(store, data_key(1), path, CONVERSATIONS)


def test_a_damaged_part_is_left_and_a_revision_takes_its_place(
    store: ArtifactStore, path: Path
) -> None:
    write_part(path, conversations=CONVERSATIONS)
    damaged = _flip_a_bit(path.read_bytes())
    store.create(data_key(1), damaged)
    store.create(data_key(1, 1), b"")
    receipt = part.publish_part(store, data_key(1), path, CONVERSATIONS)
    assert receipt.key == data_key(1, 2)
    assert part.find_part(store, 1, PLAN_SHA, INPUT_SHA) == receipt
    assert store.get(data_key(1)) == damaged


def test_the_highest_valid_revision_is_the_part(
    store: ArtifactStore, path: Path, tmp_path: Path
) -> None:
    assert part.find_part(store, 1, PLAN_SHA, INPUT_SHA) is None
    write_part(path, conversations=CONVERSATIONS)
    write_part(tmp_path / "later", conversations=CONVERSATIONS, text="later")
    store.create_file(data_key(1), path)
    store.create_file(data_key(1, 1), tmp_path / "later")
    store.create(data_key(1, 2), b"damaged")
    store.create_file(data_key(12), path)
    found = part.find_part(store, 1, PLAN_SHA, INPUT_SHA)
    assert found is not None
    assert found.key == data_key(1, 1)


class _CountingStore:
    """Counts what is asked of a store."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.uri = store.uri
        self.head = store.head
        self.n_ranges = 0
        self.n_opened = 0

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.n_ranges += 1
        return self._store.get_range(key, start, length)

    def open(self, key: str) -> None:
        self.n_opened += 1
        raise AssertionError(key)
