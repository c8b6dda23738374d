"""Conversations that wait on the local disk for their turn in the run's order.

Enters: conversations in the order of rows. Leaves: the same in the run's order. It exists because
a quota is filled in the run's order, which is known only after the last row: 24 bytes a
conversation stay in memory, the texts do not.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson


class Candidates:
    """A file of JSON lines, with the place of each line and its key; a context manager."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b")
        self._offsets = array("Q")
        self._keys = bytearray()

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, key: bytes, record: dict[str, Any]) -> None:
        """Put a conversation aside under its 16 bytes of `mix.order_key`."""
        self._offsets.append(self._file.tell())
        self._keys += key
        self._file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    def read_in_order(self) -> Iterator[dict[str, Any]]:
        """Read the conversations by their key."""
        keys = np.frombuffer(bytes(self._keys), dtype=">u8").reshape(-1, 2)
        for index in np.lexsort((keys[:, 1], keys[:, 0])):
            self._file.seek(self._offsets[index])
            yield orjson.loads(self._file.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
