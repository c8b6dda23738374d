"""What a plain `datasets.map` takes for the work of extraction: normalise, id, drop duplicates.

It reads `question`, or `messages` of the ShareGPT form, and checks nothing.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

_ROLES = {"human": "user", "gpt": "assistant"}


def time_mapping(table: pa.Table, cache: Path) -> float:
    """Map and filter all rows; gives the CPU seconds. `cache` begins the names of its files."""
    import datasets  # 100 MB for this one alone

    datasets.disable_progress_bars()
    rows = datasets.Dataset(table)
    met: set[str] = set()

    def normalise(row: dict[str, Any]) -> dict[str, Any]:
        given = row.get("messages") or [{"from": "human", "value": row.get("question")}]
        turns = [
            {"role": _ROLES[turn["from"]], "content": turn["value"].replace("\r\n", "\n").strip()}
            for turn in given
        ]
        while turns[-1]["role"] == "assistant":
            turns.pop()
        text = "\n".join(turn["content"] for turn in turns)
        return {"id": hashlib.sha256(text.encode()).hexdigest()[:32], "turns": turns}

    def is_new(row: dict[str, Any]) -> bool:
        before = len(met)
        met.add(row["id"])
        return len(met) > before

    began = time.process_time()
    found = rows.map(normalise, cache_file_name=f"{cache}-map.arrow").filter(
        is_new, cache_file_name=f"{cache}-filter.arrow"
    )
    assert 0 < len(found) <= len(rows)
    return time.process_time() - began
