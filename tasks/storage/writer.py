"""Writing a part on the local disk: rows in, one file of frames out.

Enters: JSON rows, and what they answer. Leaves: a local file that is a part once `finish` returns,
and its footer. It exists apart from part.py because it needs no store.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import zstandard
from pydantic import BaseModel

from tasks.errors import AccountingError
from tasks.storage.frames import FRAME_BYTES, LEVEL, MAX_LINE_BYTES, make_trailer
from tasks.storage.record import PartFooter, PartHeader
from tasks.storage.scan import adds_up


class PartWriter:
    """Writes a part into a local file; the file is a part once `finish` returns."""

    def __init__(self, path: Path, header: PartHeader) -> None:
        """Begin the file, over what an earlier attempt left there.

        Args:
            path: A file of this process alone, in the spool.
            header: Which plan and input the rows answer.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._path = path
        self._file = os.fdopen(os.open(path, flags, 0o600), "wb")
        self._compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
        self._rows = bytearray()
        self._digest = hashlib.sha256()
        self._n_rows = 0
        self._offset = 0
        self._write_frame(_to_line(header))

    def append(self, line: bytes) -> None:
        """Add one row: a JSON object without its newline.

        Raises:
            ValueError: The row holds a newline or is larger than 64 MiB.
        """
        if len(line) >= MAX_LINE_BYTES or b"\n" in line:
            raise ValueError(f"a row of {len(line)} bytes does not fit on one line of a part")
        self._rows += line
        self._rows += b"\n"
        self._n_rows += 1
        if len(self._rows) >= FRAME_BYTES:
            self._flush()

    def finish(self, counts: Mapping[str, object]) -> PartFooter:
        """Write the footer and close the file.

        Args:
            counts: The fields of PartFooter but for `rows_sha256`; `n_rows` may be left out.

        Raises:
            AccountingError: The counts do not add up to the rows appended.
        """
        self._flush()
        footer = PartFooter.model_validate(
            {"n_rows": self._n_rows, **counts, "rows_sha256": self._digest.hexdigest()}
        )
        if footer.n_rows != self._n_rows or not adds_up(footer):
            self.abandon()
            raise AccountingError(
                f"{self._n_rows} rows were written, and the counts say {footer.n_rows} = "
                f"{footer.n_completed} completed + {footer.n_truncated} truncated + "
                f"{footer.n_partial} partial + {footer.n_failed} failed.",
                where=str(self._path),
            )
        offset = self._offset
        length = self._write_frame(_to_line(footer))
        self._write(make_trailer(offset, length))
        self._file.close()
        return footer

    def abandon(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            self._digest.update(self._rows)
            self._write_frame(self._rows)
            self._rows.clear()

    def _write_frame(self, content: bytes | bytearray) -> int:
        return self._write(self._compressor.compress(content))

    def _write(self, data: bytes) -> int:
        self._file.write(data)
        self._offset += len(data)
        return len(data)


def _to_line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"
