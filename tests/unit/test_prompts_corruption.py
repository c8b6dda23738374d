"""Rows of every family, corrupted: never a crash, always a prompt or a counted rejection."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deployments.samples.make import make_rows
from tasks.prompts.candidates import Candidates
from tasks.prompts.collect import Collector
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.files import read_file
from tasks.prompts.filters import RowFilter
from tasks.prompts.known import NOTHING_KNOWN
from tasks.prompts.ledger import Ledger
from tasks.prompts.prompt_file import REJECTION_SCHEMA, SEEN_SCHEMA, RecordWriter
from tasks.prompts.sources import complete_source

SAMPLES = make_rows()
FAMILIES = sorted(SAMPLES)
BOMB: Any = "x"
for _ in range(200):
    BOMB = [BOMB]
VALUES: list[Any] = [
    None, True, 7, -1, 1e308, float("nan"), [], {}, "", " ", "\x00", "\ud800", "null", "[]",
    "<tool_call>{'a'", [[["deep"]]], {"role": "user"}, {"from": 1}, BOMB, "a" * 100_000,
    "<|im_end|>", "[" * 5000, '{"a":' * 500, "<tools>", "1" * 5000, [None, 1, "x"],
]  # fmt: skip


def corrupt(rng: random.Random, value: Any) -> Any:
    """Put an odd value at a random place inside."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        return {**value, key: corrupt(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], corrupt(rng, value[at]), *value[at + 1 :]]
    return rng.choice(VALUES)


def count(tmp_path: Path, family: str, rows: list[Any]) -> tuple[int, int, Counter[str]]:
    config = complete_source(family, SourceConfig(use=family, path="x.jsonl"))
    with (
        Candidates(tmp_path / "c") as candidates,
        RecordWriter(tmp_path / "r", REJECTION_SCHEMA) as rejections,
        RecordWriter(tmp_path / "s", SEEN_SCHEMA) as seen,
    ):
        ledger = Ledger(rejections, seen)
        row_filter = RowFilter(config, ExtractionConfig(), special_names=("<|im_end|>",))
        collector = Collector(family, config, row_filter, ledger, candidates, NOTHING_KNOWN)
        n_rows = collector.collect(iter(rows), 0, None)
        return n_rows, len(candidates), ledger.n_rejected


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(seed=st.integers(0, 2**32), at=st.integers(0, 30))
def test_a_corrupted_row_is_counted(tmp_path: Path, family: str, seed: int, at: int) -> None:
    rng = random.Random(seed)
    rows = [corrupt(rng, SAMPLES[family][(at + n) % len(SAMPLES[family])]) for n in range(8)]
    n_rows, n_prompts, rejected = count(tmp_path, family, rows)
    assert n_rows == len(rows) == n_prompts + rejected.total()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_odd_value_in_each_place_of_a_row_is_counted(tmp_path: Path, family: str) -> None:
    row = SAMPLES[family][0]
    rows = [{**row, key: value} for key in row for value in VALUES] + VALUES
    n_rows, n_prompts, rejected = count(tmp_path, family, rows)
    assert n_rows == len(rows) == n_prompts + rejected.total()
    assert rejected["not_an_object"] == sum(not isinstance(value, dict) for value in VALUES)


def test_damaged_lines_of_a_file_are_counted_and_the_sound_ones_read(tmp_path: Path) -> None:
    rows = SAMPLES["metamathqa"][:6]
    lines = [json.dumps(row).encode() for row in rows]
    damaged = [
        b"\xef\xbb\xbf" + lines[0], lines[1] + b"\r", lines[2][:-9],
        b'{"query": "first", "query": "second", "type": "x"}', b"\xff\xfe", b"[" * 100_000,
        b'{"query": "' + b"y" * 10_000_000 + b'"}', b"NaN", lines[3].replace(b'"query"', b'"quer'),
        lines[4], b"   ", lines[5],
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(damaged)))
    read = list(read_file(path, columns=[], max_row_bytes=1_000_000))
    n_rows, n_prompts, rejected = count(tmp_path, "metamathqa", read)
    assert n_rows == len(damaged) - 1, "an empty line is no row"
    assert n_prompts == 5, "of equal keys the last counts, as JSON's readers have it"
    assert rejected == {"not_an_object": 4, "not_text": 1, "row_too_large": 1}
