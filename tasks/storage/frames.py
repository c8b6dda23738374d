r"""The bytes of a part: lines in zstd frames, with a trailer that finds the last of them.

Enters: lines, or ranges of stored bytes. Leaves: frames, or lines. It exists apart from part.py so
that the format can be read and written wherever the bytes are.

    frame       header line
    frames      row lines, a new frame every megabyte, so that readers stream
    frame       footer line
    skippable   28 bytes: magic, size, `DMPT`, offset and length of the footer's frame

Each frame carries its content size and a checksum. The last frame is one that decompressors skip,
so `zstd -dc` prints lines only, and two ranged reads give the first and the last of them.

Source: RFC 8878 (zstd frames, skippable frames).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, cast

import zstandard

# Level 1 costs 0.14 CPU ms a row of 28 KB, level 3 0.22 for files 9% smaller: the client's CPU is
# what keeps GPUs waiting, and parts are kept once.
LEVEL = 1
FRAME_BYTES = 1 << 20
MAX_LINE_BYTES = 64 << 20

_MAX_WINDOW_BYTES = 8 << 20
_MAX_END_BYTES = 4 << 20
_HEADER_READ = 4 << 10
_FOOTER_READ = 16 << 10
_TRAILER = struct.Struct("<II4sQQ")
_SKIPPABLE = 0x184D2A50
_MARK = b"DMPT"


class FrameFault(ValueError):
    """Bytes that are not the frames of a part."""


class Meter:
    """Hashes and counts the bytes of a stream as they pass."""

    def __init__(self, stream: BinaryIO) -> None:
        """Wrap a stream that is read from its start."""
        self._stream = stream
        self._digest = hashlib.sha256()
        self.n_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes."""
        block = self._stream.read(size)
        self._digest.update(block)
        self.n_bytes += len(block)
        return block

    @property
    def sha256(self) -> str:
        """Hash of what has passed."""
        return self._digest.hexdigest()


def make_trailer(footer_offset: int, footer_bytes: int) -> bytes:
    """Make the skippable frame that ends a part."""
    return _TRAILER.pack(_SKIPPABLE, _TRAILER.size - 8, _MARK, footer_offset, footer_bytes)


def read_ends(read_range: Callable[[int, int], bytes], n_bytes: int) -> tuple[bytes, bytes]:
    """Read the header and the footer line by two ranged reads; a third for a long footer.

    Args:
        read_range: Gives up to `length` bytes from `start`.
        n_bytes: Size of the whole part.

    Raises:
        FrameFault: The bytes do not begin or end as a part does.
    """
    tail_start = max(n_bytes - _FOOTER_READ, 0)
    tail = read_range(tail_start, _FOOTER_READ)
    trailer_start = n_bytes - _TRAILER.size
    if trailer_start < 0 or len(tail) != n_bytes - tail_start:
        raise FrameFault("it is cut short")
    magic, size, mark, offset, length = _TRAILER.unpack(tail[-_TRAILER.size :])
    if (magic, size, mark) != (_SKIPPABLE, _TRAILER.size - 8, _MARK):
        raise FrameFault("it does not end with the trailer of a part")
    if length > _MAX_END_BYTES or offset + length != trailer_start:
        raise FrameFault("its trailer does not point at its footer")
    if offset >= tail_start:
        frame = tail[offset - tail_start : -_TRAILER.size]
    else:
        frame = read_range(offset, length)
    return _decode_line(read_range(0, _HEADER_READ)), _decode_line(frame)


def split_lines(stream: Meter) -> Iterator[bytes]:
    """Decompress frame after frame and give their lines, without newlines.

    Raises:
        FrameFault: A frame is damaged, or a line is cut or longer than 64 MiB.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    reader = decompressor.stream_reader(
        cast("BinaryIO", stream), read_size=FRAME_BYTES, read_across_frames=True
    )
    rest = b""
    while True:
        try:
            # Asked for a block at a time: a decompression bomb cannot fill the memory.
            block = reader.read(FRAME_BYTES)
        except zstandard.ZstdError as error:
            raise FrameFault(f"a frame is damaged ({error})") from error
        if not block:
            break
        rest += block
        start = 0
        # Lines are long: to look for the next end is quicker than `split`, which goes byte by byte.
        while (end := rest.find(b"\n", start)) >= 0:
            yield rest[start:end]
            start = end + 1
        rest = rest[start:]
        if len(rest) > MAX_LINE_BYTES:
            raise FrameFault("a line is longer than 64 MiB")
    if rest:
        raise FrameFault("the last line is cut")


def _decode_line(frame: bytes) -> bytes:
    """Decompress the one line of a header's or footer's frame; bytes after it are ignored."""
    try:
        # An unknown size is -1. The size is claimed by the frame, so it is bounded before use.
        if not 0 < zstandard.frame_content_size(frame) <= _MAX_END_BYTES:
            raise FrameFault("its header or footer has no size, or is too large")
        line = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompress(frame)
    except zstandard.ZstdError as error:
        raise FrameFault(f"its header or footer is damaged ({error})") from error
    if not line.endswith(b"\n") or b"\n" in line[:-1]:
        raise FrameFault("its header or footer is not one line")
    return line[:-1]
