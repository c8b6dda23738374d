"""Conversations that wait on the local disk for their turn in the run's order.

Enters: conversations in the order of rows. Leaves: the same in the run's order. It exists because
a quota is filled in the run's order, which is known only after the last row: 44 bytes a
conversation stay in memory, the texts do not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import orjson

_BUFFER_BYTES = 1 << 20


class Texts:
    """A file of texts, read again by their number; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=_BUFFER_BYTES)
        self._offsets = array("Q", [0])
        self._was_read = False

    def append(self, text: str) -> None:
        """Put a text aside."""
        data = text.encode()
        if self._was_read:  # which left the file at another place than its end
            self._file.seek(self._offsets[-1])
            self._was_read = False
        self._file.write(data)
        self._offsets.append(self._offsets[-1] + len(data))

    def read(self, index: int) -> str:
        """Read the text of a number, counted from 0."""
        self._was_read = True
        self._file.seek(self._offsets[index])
        return self._file.read(self._offsets[index + 1] - self._offsets[index]).decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()


class Candidates:
    """A file of JSON lines, with the place of each line, its key and id; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=_BUFFER_BYTES)
        self._offsets = array("Q")
        self._end = 0
        self._keys = bytearray()
        self._ids = bytearray()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, key: bytes, prompt_id: bytes, record: list[Any]) -> None:
        """Put a conversation aside under its 16 bytes of `mix.order_key`, with its 16 of id."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._offsets.append(self._end)
        self._keys += key
        self._ids += prompt_id
        self._file.write(line)
        self._end += len(line)

    def list_order(self) -> npt.NDArray[np.int64]:
        """Give the places of the conversations by their key, once all are put aside."""
        self._file.flush()
        keys = np.frombuffer(self._keys, dtype=">u8").reshape(-1, 2)
        return np.lexsort((keys[:, 1], keys[:, 0]))

    def read(self, places: Sequence[int]) -> Iterator[list[Any]]:
        """Read the conversations at these places, in the order given."""
        for place in places:
            self._file.seek(self._offsets[place])
            yield orjson.loads(self._file.readline())

    def prompt_id(self, place: int) -> bytes:
        """Give the id of the conversation at a place."""
        return bytes(self._ids[16 * place : 16 * place + 16])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
