"""All rows of a source, judged one by one: conversations are put aside, the rest is refused.

Enters: rows in order. Leaves: Candidates, and rejections in the Ledger. It is the pass that every
row of a source goes through, so that its cost a row decides how long a source of millions takes.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat

from tasks.errors import SourceError
from tasks.prompts.candidates import Candidates
from tasks.prompts.config import SourceConfig
from tasks.prompts.filters import RowFilter, find_question
from tasks.prompts.known import KnownPrompts
from tasks.prompts.languages import identify_languages
from tasks.prompts.ledger import Ledger
from tasks.prompts.normalize import read_row
from tasks.prompts.record import (
    NormalizedRow,
    Refusal,
    ResolvedSource,
    RowRefused,
    hash_prompt,
)

TellRows = Callable[[int, float], None]
"""Takes the rows read so far and the seconds that they took."""

_TOLD_EVERY_ROWS = 1_000
_TOLD_EVERY_SECONDS = 2.0
# Rows that wait for their languages to be told together.
_MOST_WAITING = 256
_MOST_WAITING_CHARS = 4_000_000
# Refusals that say: this is not a row of the shape that the mapping tells of.
_SHAPE_KINDS = frozenset(
    [
        "not_an_object",
        "path_missing",
        "not_text",
        "unknown_role",
        "no_user_turn",
        "malformed_tools",
        "malformed_tool_call",
    ]
)
_DUPLICATE = Refusal("duplicate", "an earlier row is the same prompt")
_SEEN = Refusal("seen", "an earlier run met the prompt")
_IN_BASE = Refusal("in_base", "the base dataset has an answer to the prompt")


# A conversation, its id as text and as bytes, and why not where the id is known. No class: there
# is one a row, and a plain tuple costs a quarter.
_Read = tuple[NormalizedRow, str, bytes, Refusal | None]


class Collector:
    """Judges rows; puts aside lists of messages, tools, labels, row, own id and reference."""

    def __init__(  # noqa: PLR0917
        self,
        source_key: str,
        config: SourceConfig,
        row_filter: RowFilter,
        ledger: Ledger,
        candidates: Candidates,
        known: KnownPrompts,
    ) -> None:
        self._config = config
        self._filter = row_filter
        self._ledger = ledger
        self._candidates = candidates
        self._seen_earlier = (known.answered, known.seen.get(source_key, frozenset()))
        self._in_base = known.in_base

    def collect(self, rows: Iterator[object], seed: int, on_progress: TellRows | None) -> int:
        """Judge all rows; gives how many there were."""
        ledger, judge, append = self._ledger, self._filter.judge, self._candidates.append
        table = self._config.domain_labels
        met: set[bytes] = set()
        blake2b = hashlib.blake2b
        prefix = f"{seed}:".encode()
        clock = _Clock(on_progress)
        n_rows = 0
        reads = self._read(rows)
        told_reads: Iterator[tuple[_Read | Refusal, str | None]] = (
            _tell_languages(reads, self._filter)
            if self._config.languages
            else zip(reads, repeat(None), strict=False)
        )
        for read, told in told_reads:
            index = n_rows
            n_rows += 1
            if not n_rows % _TOLD_EVERY_ROWS:
                clock.tell(n_rows)
            if isinstance(read, Refusal):
                ledger.reject(read, index)
                continue
            row, prompt_id, id_bytes, refusal = read
            if refusal is None:
                refusal = judge(row, told)
                if refusal is None and id_bytes in met:
                    refusal = _DUPLICATE
            if refusal is not None:
                ledger.reject(refusal, index, own_id=row.own_id, prompt_id=prompt_id)
                continue
            met.add(id_bytes)
            # `mix.order_key`, spelled out: this is the hottest line of the pass.
            key = blake2b(prefix + prompt_id.encode(), digest_size=16).digest()
            # Of the labels, strangers' texts, only those are kept that decide something.
            labels = [label for label in row.labels if label in table] if table else []
            append(
                key,
                id_bytes,
                [row.messages, row.tools, labels, index, row.own_id, row.reference],
            )
        clock.tell(n_rows, at_end=True)
        return n_rows

    def _read(self, rows: Iterator[object]) -> Iterator[_Read | Refusal]:
        """Read rows, as far as can be told without the language of their text."""
        judge_row, mapping = self._filter.judge_row, self._config.mapping
        (answered, seen_there), in_base = self._seen_earlier, self._in_base
        for row in rows:
            refusal = judge_row(row)
            if refusal is not None:
                yield refusal
                continue
            try:
                read = read_row(row, mapping)
            except RowRefused as refused:
                yield Refusal(refused.kind, refused.detail)
                continue
            prompt_id = hash_prompt(read.messages, read.tools)
            id_bytes = bytes.fromhex(prompt_id)
            if id_bytes in answered or id_bytes in seen_there:
                refusal = _SEEN
            elif id_bytes in in_base:
                refusal = _IN_BASE
            yield read, prompt_id, id_bytes, refusal


def _tell_languages(
    reads: Iterator[_Read | Refusal], row_filter: RowFilter
) -> Iterator[tuple[_Read | Refusal, str | None]]:
    """Add to each row what its text tells of its language, where that decides."""
    for waiting in _gather(reads):
        texts = {
            place: find_question(read[0].messages)
            for place, read in enumerate(waiting)
            if not isinstance(read, Refusal)
            and read[-1] is None
            and row_filter.needs_language(read[0])
        }
        told = dict(zip(texts, identify_languages(list(texts.values())), strict=True))
        for place, read in enumerate(waiting):
            yield read, told.get(place)


def _gather(reads: Iterator[_Read | Refusal]) -> Iterator[list[_Read | Refusal]]:
    """Cut a stream into batches, of fewer rows where they are large."""
    waiting: list[_Read | Refusal] = []
    n_chars = 0
    for read in reads:
        waiting.append(read)
        if not isinstance(read, Refusal):
            n_chars += sum(len(turn["content"]) for turn in read[0].messages)
        if len(waiting) >= _MOST_WAITING or n_chars >= _MOST_WAITING_CHARS:
            yield waiting
            waiting, n_chars = [], 0
    if waiting:
        yield waiting


class _Clock:
    """Tells progress at most every few seconds."""

    def __init__(self, on_progress: TellRows | None) -> None:
        self._on_progress = on_progress
        self._began = self._last = time.monotonic()

    def tell(self, n_rows: int, *, at_end: bool = False) -> None:
        now = time.monotonic()
        if self._on_progress is not None and (at_end or now - self._last >= _TOLD_EVERY_SECONDS):
            self._last = now
            self._on_progress(n_rows, now - self._began)


def check_shape(source: ResolvedSource, n_rows: int, n_rejected: Counter[str]) -> None:
    """Refuse a source of which no row has the shape that the mapping tells of.

    Raises:
        SourceError: Says which refusals there were.
    """
    if n_rows and n_rejected.total() == n_rows and n_rejected.keys() <= _SHAPE_KINDS:
        counts = ", ".join(f"{kind} {n}" for kind, n in n_rejected.most_common())
        raise SourceError(
            f"none of the {n_rows} rows has the shape that the mapping tells of ({counts}).",
            where=f"source {source.key} ({source.dataset})",
            remedy="Write one JSON object a line (JSON lines)."
            if n_rejected.keys() <= {"not_an_object"}
            else "Correct the source's mapping: paths, role_key, content_key, role_map.",
        )
