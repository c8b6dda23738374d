"""What a run must not repeat, and what its mix starts from: earlier runs and the base, read once.

Enters: the past that the request froze, and the base dataset. Leaves: KnownPrompts, and the base by
domain. It exists as one pass over the base, before extraction: a prompt that stands there costs no
GPU time, and the mix needs to know what is there.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from flows.stages.increments import Past, iter_seen
from tasks.chat.template import ChatTemplate
from tasks.prompts.known import KnownPrompts
from tasks.storage.config import StoreConfig
from tasks.storage.store import S3Credentials
from tasks.tokens.base import iter_base
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.overlap import digest_prompts
from tasks.tokens.rows import read_strings

# `sample_id` of ours begins with the prompt's id.
_OUR_ID = re.compile(r"([0-9a-f]{32})#s\d+#g\d+")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found.

    Attributes:
        known: Prompts to leave out.
        base_rows: Rows of the base dataset by domain.
        base_tokens: Its supervised tokens by domain.
    """

    known: KnownPrompts
    base_rows: dict[str, int]
    base_tokens: dict[str, int]


def survey(
    past: Past,
    store: StoreConfig,
    credentials: S3Credentials | None,
    base: BaseDatasetConfig | None,
    template: ChatTemplate,
    *,
    thinking: bool,
) -> Survey:
    """Read the earlier runs' ids and the base dataset.

    Raises:
        CorruptPart: An earlier run is no longer what it was.
        BaseDatasetError: The base dataset cannot be read.
    """
    answered: set[bytes] = set()
    seen: defaultdict[str, set[bytes]] = defaultdict(set)
    for run in past.runs:
        for source, prompt_id in iter_seen(store, credentials, run):
            (answered if source is None else seen[source]).add(prompt_id)
    rows: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    in_base: set[bytes] = set()
    rendered: set[bytes] = set()
    if base is not None:
        for batch in iter_base(base, template, thinking=thinking, refused=Counter()):
            _count(batch, rows, tokens)
            digests = digest_prompts(batch)
            for row_id, digest in zip(read_strings(batch, "id"), digests, strict=True):
                ours = _OUR_ID.fullmatch(row_id)
                if ours is not None:
                    in_base.add(bytes.fromhex(ours[1]))
                elif digest:
                    rendered.add(digest.tobytes())
    known = KnownPrompts(
        answered=frozenset(answered),
        seen={source: frozenset(ids) for source, ids in seen.items()},
        in_base=frozenset(in_base),
        rendered=frozenset(rendered),
    )
    return Survey(known, dict(rows), dict(tokens))


def _count(batch: pa.RecordBatch, rows: Counter[str], tokens: Counter[str]) -> None:
    masks = batch.column("loss_mask")
    parents = pc.list_parent_indices(masks).to_numpy()
    flat = pc.list_flatten(masks).to_numpy()
    domains = read_strings(batch, "domain")
    for domain in domains:
        rows[domain] += 1
    for index, n in Counter(parents[flat != 0].tolist()).items():
        tokens[domains[index]] += n
