"""Stores that lie: a finished run's folder, changed so that every hash and size still agrees.

Enters: a run's folder and a change to the rows of one part or shard. Leaves: the folder with the
change in it, and a manifest that vouches for it: a judge that only compares hashes is fooled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tests.support.audit import read_part

Rows = list[dict[str, Any]]


def doctor_part(prefix: Path, change: Callable[[Rows], Rows]) -> None:
    """Change the outcomes of the last part; its footer counts what is there now."""
    manifest_path = _find_manifest(prefix)
    manifest = json.loads(manifest_path.read_bytes())
    receipt = manifest["parts"][-1]
    path = prefix / receipt["key"]
    header, *rows, footer = read_part(path)
    rows = change(rows)
    turns = [turn for row in rows for turn in row["completions"]]
    footer["n_rows"] = len(rows)
    footer["n_completed"] = sum(row["status"] == "completed" for row in rows)
    footer["n_generations"] = len(turns)
    footer["n_output_tokens"] = sum(len(turn["output_token_ids"]) for turn in turns)
    text = "".join(json.dumps(line) + "\n" for line in (header, *rows, footer))
    path.write_bytes(zstandard.ZstdCompressor().compress(text.encode()))
    receipt["footer"] = footer
    _vouch(manifest_path, manifest, receipt, path)


def doctor_shard(prefix: Path, change: Callable[[Rows], Rows]) -> None:
    """Change the rows of the last shard."""
    manifest_path = _find_manifest(prefix)
    manifest = json.loads(manifest_path.read_bytes())
    receipt = manifest["shards"][-1]
    path = prefix / receipt["key"]
    table = pq.read_table(path)
    changed = pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema)
    pq.write_table(changed, path)
    receipt["n_rows"] = changed.num_rows
    _vouch(manifest_path, manifest, receipt, path)


def _find_manifest(prefix: Path) -> Path:
    return max((prefix / "_manifest").iterdir())


def _vouch(
    manifest_path: Path, manifest: dict[str, Any], receipt: dict[str, Any], path: Path
) -> None:
    data = path.read_bytes()
    receipt["sha256"] = hashlib.sha256(data).hexdigest()
    receipt["n_bytes"] = len(data)
    manifest_path.write_text(json.dumps(manifest))
