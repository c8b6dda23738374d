"""A finished run of one part that is larger than the memory that a small machine has to spare."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

from tasks.storage.config import StoreConfig
from tasks.storage.layout import data_key, tokens_key
from tasks.storage.manifest import write_manifest
from tasks.storage.part import publish_part
from tasks.storage.record import Manifest, PartHeader
from tasks.storage.request import freeze_request, hash_json
from tasks.storage.store import open_store
from tasks.storage.writer import PartWriter
from tests.support.parts import INPUT_SHA

ROW_BYTES = 30_000


def write_large_run(folder: Path, n_rows: int) -> None:
    """Write it; the rows do not compress: the part holds some 30 kB a row."""
    plan = {"n_samples": 1, "chunks": [{"id": 0, "n_prompts": n_rows}]}
    store = open_store(StoreConfig(uri=folder.as_uri()))
    freeze_request(store, {}, dict)
    path = folder.with_suffix(".part")
    header = PartHeader(plan_sha=hash_json(plan), chunk_id=0, input_sha256=INPUT_SHA)
    writer = PartWriter(path, header)
    rng = random.Random(0)
    ids = [(f"prompt-{number:06d}", 0) for number in range(n_rows)]
    for prompt_id, sample in ids:
        text = base64.b64encode(rng.randbytes(ROW_BYTES)).decode()
        row = {"prompt_id": prompt_id, "sample": sample, "status": "completed", "text": text}
        writer.append(json.dumps(row).encode())
    counts: dict[str, object] = {
        f"n_{name}": 0
        for name in ("truncated", "partial", "failed", "prompt_tokens", "output_tokens")
    }
    writer.finish(
        {**counts, "n_completed": n_rows, "n_generations": n_rows,
         "failures": {}, "gates": {}, "server_versions": {}}
    )  # fmt: skip
    part = publish_part(store, data_key(0), path, ids)
    path.unlink()
    made = store.create(tokens_key("abcdef0123", part.key, part.sha256), b"samples")
    write_manifest(
        store,
        Manifest(
            revision=0,
            created_at="2025-01-01T00:00:00Z",
            plan_sha=part.header.plan_sha,
            plan=plan,
            parts=(part,),
            supersedes={},
            samples=(
                {
                    "data_key": part.key,
                    "data_sha256": part.sha256,
                    "key": made.key,
                    "sha256": made.sha256,
                    "n_bytes": made.n_bytes,
                    "n_generations": n_rows,
                    "n_samples": n_rows,
                    "n_dropped": {},
                },
            ),
            shards=(),
            counts={
                "n_conversations": n_rows,
                "n_completed": n_rows,
                "n_truncated": 0,
                "n_partial": 0,
                "n_failed": 0,
                "n_dataset_rows": 0,
            },
            composition={},
            report_key=None,
            versions={},
        ),
    )
    store.close()
