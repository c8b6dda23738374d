"""Sources are completed, pinned and read; what is wrong with one is said with the remedy."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from flows.configuration.load import load_config
from tasks.errors import SourceError
from tasks.prompts.config import RowMapping, SourceConfig
from tasks.prompts.record import UnreadableRow
from tasks.prompts.sources import complete_source, iter_rows, load_registry, resolve_source
from tests.support.prompts import write_jsonl

ROWS = [{"q": f"Question {i}?", "meta": {"topic": "rivers"}} for i in range(5)]


def read(path: Path, mapping: dict[str, Any] | None = None, max_row_bytes: int = 10_000) -> Any:
    config = SourceConfig(path=str(path), mapping=RowMapping(**(mapping or {"prompt": "q"})))
    source = resolve_source("invented", config, None)
    return list(iter_rows(source, config, None, max_row_bytes=max_row_bytes))


def test_the_registry_holds_the_six_sources_with_a_mapping_each() -> None:
    registry = load_registry()
    assert {entry.dataset for entry in registry.values()} == {
        "BAAI/Infinity-Instruct",
        "TIGER-Lab/WebInstructSub",
        "m-a-p/CodeFeedback-Filtered-Instruction",
        "meta-math/MetaMathQA",
        "NousResearch/hermes-function-calling-v1",
        "Atum09/agent-training-dataset",
    }
    assert all(entry.mapping and entry.licence != "unknown" for entry in registry.values())


def test_the_quotas_of_the_field_are_193010_in_the_registry_and_in_the_profile() -> None:
    registry = load_registry()
    profile = load_config("rtx-pro-6000-8x", ["store.uri=file:///x"]).config.sources
    quotas = {name: registry[name].quota for name in profile}
    assert quotas == {name: source.quota for name, source in profile.items()}
    assert list(quotas.values()) == [98_257, 40_000, 29_000, 24_000, 1_200, 553]
    assert sum(quota or 0 for quota in quotas.values()) == 193_010


def test_what_is_set_beside_use_wins_over_the_registry() -> None:
    config = complete_source("mine", SourceConfig(use="metamathqa", quota=7, domain="numbers"))
    entry = load_registry()["metamathqa"]
    assert (config.dataset, config.mapping) == (entry.dataset, entry.mapping)
    assert (config.quota, config.domain, config.use) == (7, "numbers", None)
    assert complete_source("mine", config) is config


def test_a_path_beside_use_reads_a_local_file_with_the_entrys_mapping() -> None:
    config = complete_source("mine", SourceConfig(use="infinity-instruct-0625", path="rows.jsonl"))
    assert (config.dataset, config.config, config.path) == (None, None, "rows.jsonl")
    assert config.mapping == load_registry()["infinity-instruct-0625"].mapping


def test_another_dataset_beside_use_does_not_inherit_the_configuration_name() -> None:
    mirror = SourceConfig(use="hermes-function-calling-v1", dataset="someone/mirror")
    assert complete_source("mine", mirror).config is None


def test_a_misspelt_entry_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SourceError) as caught:
        complete_source("mine", SourceConfig(use="metamath-qa"))
    assert "'metamathqa'" in caught.value.remedy
    assert caught.value.where == "sources.mine.use"


@pytest.mark.parametrize("join", ["{prompt}", "{prompt}{input}{x}", "{prompt!r}{input}", "{0}"])
def test_a_join_template_with_other_fields_is_refused(join: str) -> None:
    with pytest.raises(ValidationError):
        RowMapping(prompt="q", input="i", join=join)


def test_a_local_file_is_pinned_by_its_hash_and_a_changed_one_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    config = SourceConfig(path=str(path), mapping=RowMapping(prompt="q"))
    source = resolve_source("mine", config, None)
    assert source.revision == hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.dataset == "rows.jsonl"
    write_jsonl(path, ROWS[1:])
    with pytest.raises(SourceError, match="not the one that this run began with"):
        list(iter_rows(source, config, None, max_row_bytes=10_000))


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"rows.{kind}"
    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        half = lines.index(b"\n") + 1
        frames = [zstandard.compress(lines[:half]), zstandard.compress(lines[half:])]
        path.write_bytes(b"".join(frames))
    else:
        path.write_bytes(b"\xef\xbb\xbf" + lines.rstrip(b"\n"))
    assert read(path, {"prompt": "q", "label": "meta.topic"}) == ROWS


def test_parquet_reads_only_the_columns_that_the_mapping_uses(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    assert read(path) == [{"q": row["q"]} for row in ROWS]


def test_a_bad_line_is_a_row_of_its_own_and_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(
        b'{"q": "one"}\n{"q": \n\n{"q": "\xff"}\n{"q": "\\ud800"}\n'
        + b"[" * 50_000 + b"\n" + b'{"q": "' + b"x" * 60_000 + b'"}\n{"q": "two"}\n'
    )  # fmt: skip
    rows = read(path, max_row_bytes=55_000)
    assert [row.kind if isinstance(row, UnreadableRow) else row["q"] for row in rows] == [
        "one", "not_an_object", "not_text", "\ud800", "not_an_object", "row_too_large", "two",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
def test_a_line_that_swells_to_a_thousand_times_its_size_is_never_held(
    tmp_path: Path, kind: str
) -> None:
    line = b'{"q": "' + b"x" * 60_000_000 + b'"}\n{"q": "small"}\n'
    path = tmp_path / f"rows.{kind}"
    compress = gzip.compress if kind == "jsonl.gz" else zstandard.compress
    path.write_bytes(compress(line))
    del line
    tracemalloc.start()
    rows = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [isinstance(row, UnreadableRow) for row in rows] == [True, False]
    assert peak < 10_000_000


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, kind: str) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), buffer)
    whole = {
        "parquet": buffer.getvalue(),
        "jsonl.gz": gzip.compress(json.dumps(ROWS[0]).encode() * 99),
        "jsonl.zst": b"not zstd at all",
    }[kind]
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(SourceError) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst"])
@pytest.mark.parametrize("n_cut", [1, 20])
def test_a_file_that_was_cut_off_is_an_error_and_not_a_shorter_source(
    tmp_path: Path, kind: str, n_cut: int
) -> None:
    compress = gzip.compress if kind == "jsonl.gz" else zstandard.compress
    path = tmp_path / f"rows.{kind}"
    lines = [json.dumps({"q": hashlib.sha256(bytes([i])).hexdigest()}) for i in range(200)]
    path.write_bytes(compress("\n".join(lines).encode())[:-n_cut])
    with pytest.raises(SourceError, match="damaged"):
        list(read(path))


def test_a_parquet_text_that_is_no_utf8_is_a_row_of_its_own(tmp_path: Path) -> None:
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 2, 4, 6)))
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"ab\xff\xfecd")])
    pq.write_table(pa.table({"q": texts}), tmp_path / "rows.parquet")
    first, bad, last = read(tmp_path / "rows.parquet")
    assert (first, last) == ({"q": "ab"}, {"q": "cd"})
    assert isinstance(bad, UnreadableRow)
    assert bad.kind == "not_text"


def test_the_end_of_a_files_name_counts_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "ROWS.JSONL.GZ").write_bytes(gzip.compress(b'{"q": "a"}'))
    assert list(read(tmp_path / "ROWS.JSONL.GZ")) == [{"q": "a"}]


def test_a_missing_file_and_another_kind_are_errors_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Remedy"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "rows.csv").write_text("q\n1\n")
    with pytest.raises(SourceError, match="none of"):
        read(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("mapping", "field", "near"),
    [
        ({"prompt": "qq"}, "mapping.prompt", "q"),
        ({"prompt": "q", "label": "meta.topics"}, "mapping.label", "meta.topic"),
        ({"prompt": "q", "filter": {"meta.topik": ("a",)}}, "mapping.filter", "meta.topic"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_path_that_is_in_no_row_is_an_error_that_names_the_nearest(
    tmp_path: Path, kind: str, mapping: dict[str, Any], field: str, near: str
) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        write_jsonl(path, ROWS)
    with pytest.raises(SourceError) as caught:
        read(path, mapping)
    assert field in caught.value.what
    assert near in caught.value.what.partition("Nearest")[2]


def test_a_role_key_that_is_in_no_message_is_an_error_that_names_the_nearest(
    tmp_path: Path,
) -> None:
    rows = [{"chat": [{"from": "human", "value": "Hello?"}]}]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    with pytest.raises(SourceError, match=r"mapping\.role_key is 'role'.*from"):
        read(path, {"messages": "chat"})


def test_a_path_that_only_some_rows_have_is_no_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"q": "a"}, {"q": "b", "tools": None}, 7])
    assert len(read(path, {"prompt": "q", "tools": "tools"})) == 3
