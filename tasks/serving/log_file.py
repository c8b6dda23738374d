"""A server's log: kept to a size while the server writes on, and read from its end.

Enters: the path of a log that a process appends to. Leaves: the same path, shorter, with the older
text beside it as `.1`, `.2`, `.3`. The text is copied and the file cut, because the server holds it
open; it was opened to append, so that it goes on at the new end.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MOST_BYTES = 64 * 2**20
N_KEPT = 3
_TAIL_BYTES = 4096
_TAIL_LINES = 25


def rotate_log(log: Path, *, most_bytes: int = MOST_BYTES) -> bool:
    """Turn a log over if it has outgrown `most_bytes`; whether it was."""
    if not log.is_file() or log.stat().st_size <= most_bytes:
        return False
    for number in range(N_KEPT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy = log.with_name(f"{log.name}.1")
    shutil.copyfile(log, copy)
    copy.chmod(0o600)
    os.truncate(log, 0)
    return True


def read_tail(
    log: Path,
    *,
    secret: str | None = None,
    n_bytes: int = _TAIL_BYTES,
    n_lines: int = _TAIL_LINES,
) -> str:
    """Return the last lines of a log, without control characters and without the secret."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - n_bytes))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return ""
    if secret:
        text = text.replace(secret, "***")
    text = "".join(char for char in text if char == "\n" or char.isprintable())
    return "\n".join(text.splitlines()[-n_lines:])
