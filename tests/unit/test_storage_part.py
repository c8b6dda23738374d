"""The writer refuses what does not add up, and hostile bytes cannot fill the memory."""

import struct
import tracemalloc
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tasks.errors import AccountingError, CorruptPart
from tasks.storage import frames, part
from tasks.storage.layout import data_key
from tasks.storage.record import PartHeader
from tasks.storage.store import ArtifactStore
from tasks.storage.writer import PartWriter
from tests.support.parts import INPUT_SHA, PLAN_SHA, list_conversations, write_part

HEADER = PartHeader(plan_sha=PLAN_SHA, chunk_id=1, input_sha256=INPUT_SHA)
COUNTS = {
    "n_completed": 1,
    "n_truncated": 0,
    "n_partial": 0,
    "n_failed": 0,
    "n_generations": 1,
    "n_prompt_tokens": 1,
    "n_output_tokens": 1,
    "failures": {},
    "gates": {},
    "server_versions": {},
}


@given(rows=st.lists(st.binary(max_size=300_000).filter(lambda row: b"\n" not in row), max_size=8))
def test_any_rows_come_back_in_their_frames(
    tmp_path_factory: pytest.TempPathFactory, rows: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("part") / "local"
    writer = PartWriter(path, HEADER)
    for row in rows:
        writer.append(row)
    footer = writer.finish({**COUNTS, "n_completed": len(rows)})
    with path.open("rb") as file:
        lines = list(frames.split_lines(frames.Meter(file)))
    assert lines[0] == HEADER.model_dump_json().encode()
    assert lines[1:-1] == rows
    assert lines[-1] == footer.model_dump_json().encode()


def test_counts_that_do_not_add_up_make_no_part(tmp_path: Path) -> None:
    for counts in (COUNTS, {**COUNTS, "n_completed": 3, "n_failed": -1}, {**COUNTS, "n_rows": 1}):
        writer = PartWriter(tmp_path / "local", HEADER)
        writer.append(b"{}")
        writer.append(b"{}")
        with pytest.raises(AccountingError):
            writer.finish(counts)
        assert not (tmp_path / "local").exists()


def test_a_row_is_one_line(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path / "local", HEADER)
    with pytest.raises(ValueError, match="one line"):
        writer.append(b'{"a":\n1}')
    writer.abandon()
    assert not (tmp_path / "local").exists()


def test_the_spooled_file_is_private_and_no_link_is_followed(tmp_path: Path) -> None:
    write_part(tmp_path / "local", conversations=list_conversations(1))
    assert (tmp_path / "local").stat().st_mode & 0o777 == 0o600
    (tmp_path / "victim").write_bytes(b"kept")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError, match="symbolic links"):
        PartWriter(tmp_path / "link", HEADER)
    assert (tmp_path / "victim").read_bytes() == b"kept"


def test_a_footer_longer_than_the_first_read_is_found(
    file_store: ArtifactStore, tmp_path: Path
) -> None:
    versions = {
        f"http://10.0.{i // 250}.{i % 250}:{30000 + i}": f"{i * 7919:x}" for i in range(9000)
    }
    writer = PartWriter(tmp_path / "local", HEADER)
    writer.append(b"{}")
    footer = writer.finish({**COUNTS, "server_versions": versions})
    assert (tmp_path / "local").stat().st_size > 32_000
    file_store.create_file(data_key(1), tmp_path / "local")
    assert part.peek(file_store, data_key(1)) == (HEADER, footer)


def test_rows_of_another_part_under_a_sound_header_and_footer_are_found(
    file_store: ArtifactStore, tmp_path: Path
) -> None:
    conversations = list_conversations(3)
    write_part(tmp_path / "one", conversations=conversations, text="one")
    write_part(tmp_path / "two", conversations=conversations, text="two")
    one, two = (_split(tmp_path / name) for name in ("one", "two"))
    mixed = one[0] + two[1] + one[2]
    trailer = frames.make_trailer(len(one[0]) + len(two[1]), len(one[2]))
    file_store.create(data_key(1), mixed + trailer)
    with pytest.raises(CorruptPart, match="sha256 of its rows"):
        part.read_receipt(file_store, data_key(1))


@pytest.mark.parametrize("place", ["header", "rows", "footer"])
def test_a_decompression_bomb_costs_little_memory(
    file_store: ArtifactStore, tmp_path: Path, place: str
) -> None:
    write_part(tmp_path / "local", conversations=list_conversations(3))
    header, rows, footer = _split(tmp_path / "local")
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(400_000_000))
    pieces = {"header": header, "rows": rows, "footer": footer, place: bomb}
    body = pieces["header"] + pieces["rows"]
    file_store.create(
        data_key(1),
        body + pieces["footer"] + frames.make_trailer(len(body), len(pieces["footer"])),
    )
    tracemalloc.start()
    with pytest.raises(CorruptPart):
        part.read_receipt(file_store, data_key(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000_000


def test_a_footer_that_claims_a_huge_size_is_not_believed(file_store: ArtifactStore) -> None:
    claim = struct.pack("<IBQ", zstandard.MAGIC_NUMBER, 0b11100000, 1 << 40)
    file_store.create(data_key(1), claim + frames.make_trailer(0, len(claim)))
    with pytest.raises(CorruptPart):
        part.peek(file_store, data_key(1))


def _split(path: Path) -> tuple[bytes, bytes, bytes]:
    """Give the frames of header, rows (one frame) and footer."""
    data = path.read_bytes()
    found = []
    for _ in range(3):
        reader = zstandard.ZstdDecompressor().decompressobj()
        reader.decompress(data)
        found.append(data[: len(data) - len(reader.unused_data)])
        data = reader.unused_data
    return found[0], found[1], found[2]
