"""Tiny parts with invented rows, finished on the local disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from tasks.storage.record import PartHeader
from tasks.storage.writer import PartWriter

PLAN_SHA = "ab" * 32
INPUT_SHA = "cd" * 32
Conversations = list[tuple[str, int]]


def list_conversations(n_rows: int) -> Conversations:
    """Name the conversations of a chunk."""
    return [(f"prompt-{i:04d}", 0) for i in range(n_rows)]


def write_part(
    path: Path,
    *,
    chunk_id: int = 1,
    conversations: Sequence[tuple[str, int]] = (),
    plan_sha: str = PLAN_SHA,
    text: str = "an answer",
    statuses: Iterable[str] = (),
) -> list[bytes]:
    """Write a part and give its rows; the first conversations end as `statuses` say."""
    header = PartHeader(plan_sha=plan_sha, chunk_id=chunk_id, input_sha256=INPUT_SHA)
    ends = [*statuses, *["completed"] * len(conversations)][: len(conversations)]
    rows = [
        json.dumps(
            {"prompt_id": prompt, "sample": sample, "status": status, "text": f"{text} {i}"}
        ).encode()
        for i, ((prompt, sample), status) in enumerate(zip(conversations, ends, strict=True))
    ]
    writer = PartWriter(path, header)
    for row in rows:
        writer.append(row)
    writer.finish(
        {
            **{f"n_{s}": ends.count(s) for s in ("completed", "truncated", "partial", "failed")},
            "n_generations": len(rows),
            "n_prompt_tokens": 10 * len(rows),
            "n_output_tokens": 20 * len(rows),
            "failures": {},
            "gates": {},
            "server_versions": {"http://127.0.0.1:1": "0.0.0"},
        }
    )
    return rows
