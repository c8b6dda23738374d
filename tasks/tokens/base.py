"""The base dataset, read as canonical rows and refused where it is another kind of data.

Enters: a dataset's files with the user's column names, the target's template. Leaves: batches of
the canonical schema, and a hash that pins the dataset in the request. It exists because rows of
another tokenizer merge without a sound, and because a base of text alone has to be told apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.chat.template import ChatTemplate
from tasks.errors import BaseDatasetError
from tasks.tokens.base_columns import BaseRows, list_columns, name_rows, read_ids, read_values
from tasks.tokens.base_files import hash_files, list_base_files, read_rows
from tasks.tokens.base_text import retokenize_rows
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.record import RETOKENIZED
from tasks.tokens.rows import make_batch

UNKNOWN_FINISH = "unknown"
UNKNOWN_TOKENS = "unknown"

_INT32_MAX = np.iinfo(np.int32).max
_PROBED_FILES = 4
_PROBED_ROWS = 16
_PROBED_TOKENS = 2048
# Of the target's own ids some 99.9% come back; of another tokenizer's about half.
_LEAST_SURVIVING = 0.95


def hash_base(base: BaseDatasetConfig) -> str:
    """Hash the base dataset: its files' names and bytes, in order.

    Raises:
        BaseDatasetError: There is no file to read.
    """
    return hash_files(base.path)


def estimate_tokens(base: BaseDatasetConfig) -> int:
    """Estimate the tokens of the base dataset from its size, rather too many than too few."""
    return sum(path.stat().st_size for path in list_base_files(base.path))


def iter_base(
    base: BaseDatasetConfig, template: ChatTemplate, *, thinking: bool, refused: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """Read the base dataset as canonical batches, streamed.

    Args:
        base: Where it is, and its column names.
        template: The target's: an id outside its vocabulary is another tokenizer's, and a base
            without ids is re-tokenised with it.
        thinking: Whether the target thinks, where its ids are made of text.
        refused: Counts rows of text that gave no sample, by why.

    Raises:
        BaseDatasetError: A file or column is missing or of another type, a mask is not 0 or 1 or
            not as long as its ids, or ids are outside the target's vocabulary.
    """
    n_rows = 0
    for path in list_base_files(base.path):
        for batch in _iter_file(path, base, template, n_rows, thinking=thinking, refused=refused):
            n_rows += batch[0]
            if batch[1].num_rows:
                yield batch[1]


def check_tokenizer(base: BaseDatasetConfig, template: ChatTemplate, *, thinking: bool) -> None:
    """Hold some rows against the target's tokenizer: their ids, decoded and encoded, come back.

    An id outside the vocabulary is refused while rows are read; this finds the tokenizer whose
    ids all lie inside, and are other words.

    Raises:
        BaseDatasetError: They do not come back, or cannot be read. What they decode to is shown.
    """
    n_ids = n_surviving = 0
    shown = ""
    for path in list_base_files(base.path)[:_PROBED_FILES]:
        found = _iter_file(path, base, template, 0, thinking=thinking, refused=Counter())
        _, batch = next(found, (0, None))
        for row in batch.slice(0, _PROBED_ROWS).to_pylist() if batch is not None else ():
            ids = row["input_ids"][:_PROBED_TOKENS]
            text = template.decode(ids)
            survivors = (Counter(ids) & Counter(template.encode(text))).total()
            n_ids, n_surviving = n_ids + len(ids), n_surviving + survivors
            shown = shown or f"row {row['id']!r} reads {text[:80]!r}"
    if n_surviving < _LEAST_SURVIVING * n_ids:
        raise BaseDatasetError(
            f"the base dataset was made with another tokenizer: decoded and encoded again by the "
            f"target's, {n_surviving / n_ids:.0%} of {n_ids} ids come back; {shown}.",
            where=base.path,
            remedy="Merge with a base dataset of this target, or leave base empty; a base with "
            "its conversations can be re-tokenised (base.messages).",
        )


def _iter_file(
    path: Path,
    base: BaseDatasetConfig,
    template: ChatTemplate,
    n_before: int,
    *,
    thinking: bool,
    refused: Counter[str],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read one file: how many rows were read, and the canonical rows made of them."""
    for rows in read_rows(path, list_columns(base)):
        names = name_rows(rows, base, n_before)
        n_before += len(names.ids)
        if base.messages is None:
            read = read_ids(rows, names, base)
            yield len(names.ids), _to_canonical(read, template.vocab_size, UNKNOWN_TOKENS)
            continue
        read = retokenize_rows(
            names,
            read_values(rows, base.messages, names),
            read_values(rows, base.tools, names) if base.tools else [None] * len(names.ids),
            thinking=thinking,
            template=template,
            refused=refused,
        )
        yield len(names.ids), _to_canonical(read, template.vocab_size, RETOKENIZED)


def _to_canonical(rows: BaseRows, vocab_size: int, token_source: str) -> pa.RecordBatch:
    names = rows.names
    if names.ids:
        _check_rows(rows, vocab_size)
    return make_batch(
        ids=names.ids,
        sources=names.sources,
        domains=names.domains,
        flat_ids=rows.flat_ids.astype(np.int32),
        flat_mask=rows.flat_mask.astype(np.int8),
        seq_lens=rows.n_ids,
        finish_reasons=[UNKNOWN_FINISH] * len(names.ids),
        token_sources=[token_source] * len(names.ids),
    )


def _check_rows(rows: BaseRows, vocab_size: int) -> None:
    _check_lengths(rows)
    ends = np.cumsum(rows.n_ids)

    def name_row_of(place: int) -> str:
        return rows.names.place(int(np.searchsorted(ends, place, side="right")))

    if rows.flat_ids.min() < 0 or rows.flat_ids.max() > _INT32_MAX:
        bad = int(np.argmax((rows.flat_ids < 0) | (rows.flat_ids > _INT32_MAX)))
        raise BaseDatasetError(
            f"id {rows.flat_ids[bad]} is no token id (it does not fit int32).",
            where=name_row_of(bad),
        )
    if rows.flat_ids.max() >= vocab_size:
        bad = int(np.argmax(rows.flat_ids))
        raise BaseDatasetError(
            f"id {rows.flat_ids[bad]} lies outside the target's vocabulary (0 to {vocab_size - 1}):"
            " the base dataset was made with another tokenizer.",
            where=name_row_of(bad),
            remedy="Merge with a base dataset of this target, or leave base empty.",
        )
    if rows.flat_mask.min() < 0 or rows.flat_mask.max() > 1:
        bad = int(np.argmax((rows.flat_mask < 0) | (rows.flat_mask > 1)))
        raise BaseDatasetError(
            f"the mask holds {rows.flat_mask[bad]}; it may hold 0 and 1 only.",
            where=name_row_of(bad),
        )


def _check_lengths(rows: BaseRows) -> None:
    uneven = np.flatnonzero((rows.n_ids != rows.n_mask) | (rows.n_ids == 0))
    if len(uneven):
        index = int(uneven[0])
        raise BaseDatasetError(
            f"a row has {rows.n_ids[index]} ids and a mask of {rows.n_mask[index]}; "
            "both must be equally long, and not empty.",
            where=rows.names.place(index),
        )
