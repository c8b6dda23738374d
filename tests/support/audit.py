"""The judge of a finished run: reads the store as a stranger would, and knows nothing of our code.

Enters: a folder that holds a run (an S3 prefix is copied there first). Leaves: Audit, or an
AssertionError that says what is lost, doubled or untrue.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import zstandard


@dataclass(frozen=True)
class Audit:
    """What the judge found."""

    manifest: dict[str, Any]
    prompt_ids: list[str]
    outcomes: list[dict[str, Any]]
    dataset: list[dict[str, Any]]

    @property
    def statuses(self) -> Counter[str]:
        """Conversations by how they ended."""
        return Counter(outcome["status"] for outcome in self.outcomes)


def audit_run(prefix: Path, base: Path | None = None) -> Audit:
    """Read everything and hold it against everything else.

    Args:
        prefix: The run's folder.
        base: The base dataset (JSONL) that the run was merged with.
    """
    manifest = json.loads(max((prefix / "_manifest").iterdir()).read_bytes())
    plan = json.loads((prefix / "_run/plan.json").read_bytes())
    assert manifest["plan"] == plan
    named = (manifest[field] for field in ("parts", "retries", "samples", "shards"))
    for part in (part for parts in named for part in parts):
        data = (prefix / part["key"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == part["sha256"], part["key"]
        assert len(data) == part["n_bytes"], part["key"]
    prompt_ids: list[str] = []
    outcomes: list[dict[str, Any]] = []
    for chunk, part in zip(plan["chunks"], manifest["parts"], strict=True):
        ids = read_ids(prefix / chunk["prompts_key"])
        rows = read_part(prefix / part["key"])
        header, footer = rows[0], rows[-1]
        assert header["chunk_id"] == chunk["id"]
        assert header["input_sha256"] == chunk["input_sha256"]
        wanted = [(id_, sample) for id_ in ids for sample in range(plan["n_samples"])]
        assert [(row["prompt_id"], row["sample"]) for row in rows[1:-1]] == wanted
        assert footer["n_rows"] == len(wanted)
        _check_footer(footer, rows[1:-1])
        prompt_ids += ids
        outcomes += rows[1:-1]
    assert len(set(prompt_ids)) == len(prompt_ids)
    outcomes = _apply_retries(prefix, manifest, outcomes)
    for status, n_ended in Counter(outcome["status"] for outcome in outcomes).items():
        assert manifest["counts"][f"n_{status}"] == n_ended
    for outcome in outcomes:
        _check_conversation(outcome)
    _check_extraction(prefix, plan, prompt_ids)
    dataset = [
        row
        for shard in manifest["shards"]
        for row in pq.read_table(prefix / shard["key"]).to_pylist()
    ]
    _check_dataset(dataset, outcomes, base)
    return Audit(manifest, prompt_ids, outcomes, dataset)


def read_ids(path: Path) -> list[str]:
    """Read the ids of a Parquet file of prompts."""
    return [str(id_) for id_ in pq.read_table(path)["id"].to_pylist()]


def read_part(path: Path) -> list[dict[str, Any]]:
    """Decompress a part: its header, its rows, its footer."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return [json.loads(line) for line in reader.read().splitlines()]


def _check_footer(footer: dict[str, Any], outcomes: list[dict[str, Any]]) -> None:
    ended = Counter(outcome["status"] for outcome in outcomes)
    assert sum(ended.values()) == len(outcomes) == footer["n_rows"]
    for status in ("completed", "truncated", "partial", "failed"):
        assert footer[f"n_{status}"] == ended[status], status
    turns = [turn for outcome in outcomes for turn in outcome["completions"]]
    assert footer["n_generations"] == len(turns)
    assert footer["n_output_tokens"] == sum(len(turn["output_token_ids"]) for turn in turns)


def _check_conversation(outcome: dict[str, Any]) -> None:
    """See that a conversation ended as it says, and that all its turns are of one attempt."""
    turns = outcome["completions"]
    assert outcome["attempt"]
    assert (outcome["failure"] is None) == (outcome["status"] in ("completed", "truncated"))
    assert bool(turns) == (outcome["status"] != "failed")
    assert len({turn["token_source"] for turn in turns}) <= 1
    for place, turn in enumerate(turns):
        assert turn["generation"] == place
        assert (turn["prompt_id"], turn["sample"]) == (outcome["prompt_id"], outcome["sample"])
        # What a turn was asked on is what the turns before it said, and not what another try said.
        said = [m["content"] for m in turn["messages"] if m["role"] == "assistant"]
        assert said[len(said) - place :] == [before["content"] for before in turns[:place]]


def _apply_retries(
    prefix: Path, manifest: dict[str, Any], outcomes: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Put each retry's outcomes in the place of those that they supersede."""
    standing = {(row["prompt_id"], row["sample"]): row for row in outcomes}
    n_superseded = 0
    for number, (key, sha256) in enumerate(manifest["retry_lists"].items(), start=1):
        data = (prefix / key).read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256, key
        frozen = json.loads(data)
        assert frozen["retry"] == number
        asked = [(entry["prompt_id"], entry["sample"]) for entry in frozen["conversations"]]
        answered = []
        for part in manifest["retries"]:
            if part["header"]["retry"] == number:
                rows = read_part(prefix / part["key"])
                assert rows[0] == part["header"]
                assert rows[-1]["n_rows"] == len(rows) - 2
                answered += rows[1:-1]
        assert [(row["prompt_id"], row["sample"]) for row in answered] == asked
        assert set(asked) <= set(standing)
        standing |= {(row["prompt_id"], row["sample"]): row for row in answered}
        n_superseded += len(asked)
    assert n_superseded == sum(gone["n_rows"] for gone in manifest["superseded"].values())
    return list(standing.values())


def _check_extraction(prefix: Path, plan: dict[str, Any], prompt_ids: list[str]) -> None:
    extracted: set[str] = set()
    for receipt in plan["extracted"]:
        kept = [id_ for key in receipt["part_keys"] for id_ in read_ids(prefix / key)]
        refused = pq.read_table(prefix / receipt["rejections_key"])
        left = receipt["n_not_sampled"]
        assert len(kept) == receipt["n_prompts"]
        assert receipt["n_rows"] == len(kept) + refused.num_rows + left, receipt["source"]
        extracted |= set(kept)
    assert extracted == set(prompt_ids)


def _check_dataset(
    dataset: list[dict[str, Any]], outcomes: list[dict[str, Any]], base: Path | None
) -> None:
    rows = {row["id"]: row for row in dataset}
    assert len(rows) == len(dataset)
    generated = {
        f"{turn['prompt_id']}#s{turn['sample']}#g{turn['generation']}": turn
        for outcome in outcomes
        for turn in outcome["completions"]
    }
    old = {}
    if base is not None:
        old = {row["id"]: row for row in map(json.loads, base.read_text().splitlines())}
    assert set(rows) == set(generated) | set(old)
    for id_, turn in generated.items():
        prompt, answer = turn["prompt_token_ids"], turn["output_token_ids"]
        assert rows[id_]["input_ids"] == prompt + answer
        assert rows[id_]["loss_mask"] == [0] * len(prompt) + [1] * len(answer)
        assert answer
    for id_, row in old.items():
        assert rows[id_]["input_ids"] == row["input_ids"]
        assert rows[id_]["loss_mask"] == row["loss_mask"]


def count_requests(log: Path) -> Counter[str]:
    """Count a simulator's completed requests by their prompt; one-token probes are left out."""
    lines = map(json.loads, log.read_text().splitlines())
    return Counter(
        line["prompt_hash"]
        for line in lines
        if line["outcome"] == "completed" and line["n_tokens"] > 1
    )


def copy_prefix(client: Any, bucket: str, prefix: str, to: Path) -> Path:
    """Copy every object under an S3 prefix into a folder."""
    for page in client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix + "/"
    ):
        for entry in page.get("Contents", []):
            path = to / entry["Key"].removeprefix(prefix + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, entry["Key"], str(path))
    return to
