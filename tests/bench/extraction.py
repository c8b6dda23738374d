"""Extraction: rows a CPU second and memory, beside a plain `datasets.map` of the same work.

What is measured: rows of one question and rows of two messages to normalised prompts with ids,
exact duplicates out; the same with language identification; near-duplicates; rendering beside the
tokenizer alone. Between machines only the ratios can be compared: they decide, the rest stands
beside its budget.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import py3langid
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.completions.garbage import collect_rarely
from tasks.prompts.candidates import Candidates
from tasks.prompts.collect import Collector
from tasks.prompts.config import ExtractionConfig, RowMapping, SourceConfig
from tasks.prompts.filters import RowFilter, render_first_turns
from tasks.prompts.known import NOTHING_KNOWN
from tasks.prompts.languages import identify_languages
from tasks.prompts.ledger import Ledger
from tasks.prompts.near import NearIndex
from tasks.prompts.prompt_file import REJECTION_SCHEMA, SEEN_SCHEMA, RecordWriter
from tasks.prompts.record import Message
from tasks.prompts.sources import iter_rows, resolve_source
from tests.bench.apart import Measured, forget_peak, measure_apart, tell
from tests.bench.mapped import time_mapping
from tests.bench.report import Report, make_table

# Budgets over what was measured beside them on their core: rows, 40,000 of 22,000 by datasets.map;
# languages, 8,000 of 10,700 by py3langid alone; rendering, of the tokenizer's own encode_batch.
MIN_RATIO = 1.8
MIN_RENDERING_RATIO = 0.8
MIN_LANGUAGE_RATIO = 0.75
MAX_MB = 500
_N_ROWS = 1_000_000
_N_MAPPED = 100_000
_N_LANGUAGE = 50_000
_N_NEAR = 800_000
_N_RENDERED = 4_096
_GROUP_ROWS = 10_000
_REPEATS = 7
_RENDERED_AT_ONCE = 256  # as extraction does
_ENGLISH = (
    "the of and to in is that for it as was with be by on not he this are or his from at which but "
    "have an had they you were their one all we can her has there been if more when will would who "
    "river winter garden question answer because water house light morning"
)
_MODULE = "tests.bench.extraction"
_QUESTION = SourceConfig(path="x", domain="general", mapping=RowMapping(prompt="question"))
_MESSAGES = SourceConfig(
    path="x",
    domain="general",
    mapping=RowMapping(
        messages="messages", role_key="from", content_key="value", id="id", label="label"
    ),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One measurement: its speed, the least it should be, and what it is held against."""

    name: str
    per_second: float
    budget: str
    ratio: float | None = None
    min_ratio: float | None = None
    peak_mb: float | None = None


def report() -> Report:
    """Measure, lay out, and judge by ratios and memory."""
    with TemporaryDirectory(prefix="draftmill-bench-") as scratch:
        folder = Path(scratch)
        write_rows(folder / "rows.parquet", _N_ROWS)
        lines = list(_measure(folder))
    rows = [
        (
            line.name,
            f"{line.per_second:,.0f}",
            line.budget,
            "" if line.ratio is None else f"{line.ratio:.2f}",
            "" if line.min_ratio is None else f"{line.min_ratio:.2f}",
            "" if line.peak_mb is None else f"{line.peak_mb:.0f}",
        )
        for line in lines
    ]
    faults = [
        f"{line.name}: {line.ratio:.2f}, below {line.min_ratio}"
        for line in lines
        if line.ratio is not None and line.min_ratio is not None and line.ratio < line.min_ratio
    ]
    faults += [
        f"{line.name}: {line.peak_mb:.0f} MB, past {MAX_MB}"
        for line in lines
        if line.peak_mb is not None and line.peak_mb > MAX_MB
    ]
    names = ("what", "a CPU second", "of", "ratio", "of", "peak MB")
    figures = [
        {"name": line.name, "per_second": line.per_second, "ratio": line.ratio,
         "peak_mb": line.peak_mb}
        for line in lines
    ]  # fmt: skip
    return Report(make_table("Extraction", names, rows), figures, tuple(faults))


def _measure(folder: Path) -> Iterator[Line]:
    def run(what: str, n: int) -> Measured:
        return measure_apart(_MODULE, what, str(folder), str(n))

    for name, what in (("rows of a question", "question"), ("rows of messages", "messages")):
        mapped = run(f"map {what}", _N_MAPPED)["per_second"]
        yield Line(f"datasets.map, {name}", mapped, "")
        told = run(what, _N_ROWS)
        speed = told["per_second"]
        yield Line(name, speed, "40,000", speed / mapped, MIN_RATIO, told["peak_mb"])
    yield Line("rows of messages, the floor", run("floor", _N_MAPPED)["per_second"], "")
    told = run("language", _N_LANGUAGE)
    yield Line("with language, beside py3langid alone", told["per_second"], "8,000", told["ratio"],
               MIN_LANGUAGE_RATIO)  # fmt: skip
    near = run("near", _N_NEAR)
    yield Line("near-duplicates (800k in 60 CPU s)", near["per_second"], "13,300")
    rendered = run("render", _N_RENDERED)
    yield Line("prompt tokens rendered", rendered["per_second"], "", rendered["ratio"],
               MIN_RENDERING_RATIO)  # fmt: skip


def invent_texts(n: int, words: Sequence[str] = ()) -> Iterator[str]:
    """Invent questions of 10 to 60 words; one in forty repeats the last but for a word."""
    draw = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    if not words:
        words = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    last: list[str] = []
    for index in range(n):
        if index % 40 == 1:
            again = list(last)
            again[draw.randrange(len(again))] = "changed"
            yield " ".join(again)
            continue
        last = draw.choices(words, k=draw.randint(10, 60))
        yield " ".join(last)


def write_rows(path: Path, n: int, words: Sequence[str] = ()) -> None:
    """Write rows with a question, the same as messages, an id and labels."""
    texts = invent_texts(n, words)
    writer: pq.ParquetWriter | None = None
    for start in range(0, n, _GROUP_ROWS):
        rows = [
            {
                "id": f"row-{start + index}",
                "question": text,
                "messages": [{"from": "human", "value": text}, {"from": "gpt", "value": "Yes."}],
                "label": ["creativity"],
            }
            for index, text in zip(range(_GROUP_ROWS), texts, strict=False)
        ]
        table = pa.Table.from_pylist(rows)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _collect(folder: Path, n: int, config: SourceConfig) -> Measured:
    config = config.model_copy(update={"path": str(folder / "rows.parquet")})
    source = resolve_source("bench", config, None)
    rows = iter_rows(source, config, None, max_row_bytes=1_000_000)
    row_filter = RowFilter(config, ExtractionConfig(), special_names=("<|im_end|>",))
    forget_peak()
    began = time.process_time()
    with (
        Candidates(folder / "candidates") as candidates,
        RecordWriter(folder / "rejections", REJECTION_SCHEMA) as rejections,
        RecordWriter(folder / "seen", SEEN_SCHEMA) as seen,
        collect_rarely(),
    ):
        ledger = Ledger(rejections, seen)
        collector = Collector("bench", config, row_filter, ledger, candidates, NOTHING_KNOWN)
        n_rows = collector.collect((row for row, _ in zip(rows, range(n), strict=False)), 0, None)
        candidates.list_order()
    return {"per_second": n_rows / (time.process_time() - began)}


def _read_barely(folder: Path, n: int) -> Measured:
    """Read rows of messages, hash each and put it aside: what no reading of them can leave out."""
    config = _MESSAGES.model_copy(update={"path": str(folder / "rows.parquet")})
    source = resolve_source("bench", config, None)
    rows: Iterator[Any] = iter_rows(source, config, None, max_row_bytes=1_000_000)
    met: set[bytes] = set()
    began = time.process_time()
    with Candidates(folder / "floor") as candidates, collect_rarely():
        for row, _ in zip(rows, range(n), strict=False):
            messages = row["messages"]
            digest = hashlib.sha256(orjson.dumps(messages)).digest()[:16]
            if digest not in met:
                met.add(digest)
                candidates.append(digest, digest, [messages, row["label"], row["id"]])
        candidates.list_order()
    return {"per_second": n / (time.process_time() - began)}


def _identify(folder: Path, n: int) -> Measured:
    inner = folder / "english"
    inner.mkdir()
    write_rows(inner / "rows.parquet", n, _ENGLISH.split())
    text = "Which model is read here, and how long will that take in the end?"
    identify_languages([text])  # both are read before the clock starts
    py3langid.classify(text)
    ours = _collect(inner, n, _QUESTION.model_copy(update={"languages": ("en",)}))["per_second"]
    texts = list(invent_texts(n // 10, _ENGLISH.split()))
    began = time.process_time()
    of_all = [py3langid.classify(text)[0] for text in texts]
    alone = len(texts) / (time.process_time() - began)
    # No more than one text in a hundred may begin in another language than it is in.
    pairs = zip(identify_languages(texts), of_all, strict=True)
    assert sum(of_head != told for of_head, told in pairs) <= n // 1000
    return {"per_second": ours, "ratio": ours / alone}


def _map(folder: Path, n: int, column: str) -> Measured:
    groups = list(range(n // _GROUP_ROWS))
    table = pq.ParquetFile(folder / "rows.parquet").read_row_groups(groups, columns=[column])
    return {"per_second": n / time_mapping(table, folder / column)}


def _find_near(folder: Path, n: int) -> Measured:
    texts = list(invent_texts(n))
    index = NearIndex(0.8, texts.__getitem__)
    began = time.process_time()
    with collect_rarely():
        n_fallen = int((~index.extend(texts, 0.8)).sum())
    assert n_fallen > n // 60
    return {"per_second": n / (time.process_time() - began)}


def _render(folder: Path, n: int) -> Measured:
    from tests.support.generation import load_template  # transformers: 100 MB for this one alone

    template = load_template()
    rows: list[tuple[list[Message], str | None]] = [
        ([{"role": "user", "content": text}], None) for text in invent_texts(n)
    ]
    texts = [template.render_text(messages, None, thinking=True) for messages, _ in rows]
    backend = template._backend

    def encode(piece: slice) -> Sequence[Any]:
        return backend.encode_batch(texts[piece], add_special_tokens=False)

    def render(piece: slice) -> Sequence[Any]:
        return render_first_turns(rows[piece], template, thinking=True, max_prompt_tokens=100_000)

    ways = {"raw": encode, "ours": render}
    seconds, n_tokens = dict.fromkeys(ways, 0.0), dict.fromkeys(ways, 0)
    for start in range(0, n, _RENDERED_AT_ONCE):
        piece = slice(start, start + _RENDERED_AT_ONCE)
        best = dict.fromkeys(ways, 1e9)
        for _ in range(_REPEATS):
            for name, run in ways.items():
                began = time.process_time()
                # What was made is freed within its own time, too.
                n_found = sum(map(len, run(piece)))
                best[name] = min(best[name], time.process_time() - began)
                n_tokens[name] += n_found
        for name, least in best.items():
            seconds[name] += least
    assert n_tokens["ours"] == n_tokens["raw"]
    per_second = n_tokens["ours"] / _REPEATS / seconds["ours"]
    return {"per_second": per_second, "ratio": seconds["raw"] / seconds["ours"]}


MEASURES: dict[str, Callable[[Path, int], Measured]] = {
    "question": lambda folder, n: _collect(folder, n, _QUESTION),
    "messages": lambda folder, n: _collect(folder, n, _MESSAGES),
    "floor": _read_barely,
    "language": _identify,
    "map question": lambda folder, n: _map(folder, n, "question"),
    "map messages": lambda folder, n: _map(folder, n, "messages"),
    "near": _find_near,
    "render": _render,
}

if __name__ == "__main__":
    WHAT, FOLDER, COUNT = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    tell(lambda: MEASURES[WHAT](FOLDER, COUNT))
