"""One source's rows to prompts, rejections and what was left unsampled.

Enters: a resolved source. Leaves: Parquet parts of prompts in the run's order, one file of
rejections, one of unsampled ids, and a receipt whose numbers add up. It exists as one pass over the
source: conversations wait on the local disk, in memory stays a key for each, and only what the
quota takes is rendered.

Every key and every byte follows from the source's revision and the configuration alone, so a rerun
after a crash writes what is there already.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import AccountingError, SourceError
from tasks.prompts.candidates import Candidates
from tasks.prompts.config import ExtractionConfig, SourceConfig
from tasks.prompts.dedupe import SeenPrompts
from tasks.prompts.filters import (
    choose_domain,
    filter_normalized,
    filter_row,
    render_first_turns,
)
from tasks.prompts.mix import order_key
from tasks.prompts.normalize import normalize_row
from tasks.prompts.prompt_file import (
    PROMPT_SCHEMA,
    REJECTION_SCHEMA,
    UNSAMPLED_SCHEMA,
    Columns,
    RecordWriter,
    encode_record,
)
from tasks.prompts.record import (
    ExtractReceipt,
    Rejection,
    ResolvedSource,
    SourceRef,
    hash_prompt,
)
from tasks.prompts.sources import complete_source, iter_rows
from tasks.storage.layout import extracted_key, rejections_key, unsampled_key
from tasks.storage.store import ArtifactStore

PROMPTS_PER_PART = 10_000
_RENDERED_AT_ONCE = 256
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


def extract_prompts(
    store: ArtifactStore,
    source: ResolvedSource,
    config: SourceConfig,
    *,
    template: ChatTemplate,
    model: ModelConfig,
    extraction: ExtractionConfig,
    hf_token: str | None,
) -> ExtractReceipt:
    """Extract one source into the store.

    Raises:
        SourceError: The source cannot be read, or every row was refused for its shape: then the
            mapping is at fault and not the rows, and to go on without the source would be a run
            that nobody asked for. A source whose rows were all filtered out is no error.
        AccountingError: Rows in are not rows out.
        KeyTaken: Another extraction stands at this prefix.
    """
    config = complete_source(source.key, config)
    rows = iter_rows(source, config, hf_token, max_row_bytes=extraction.max_row_bytes)
    with tempfile.TemporaryDirectory(prefix="draftmill-") as name:
        folder = Path(name)
        with (
            Candidates(folder / "candidates") as candidates,
            RecordWriter(folder / "rejections", REJECTION_SCHEMA) as rejections,
        ):
            run = _Extraction(source, config, extraction, candidates, rejections)
            run.collect(rows)
            run.check_shape()
            records = run.render(template, model)
            part_keys, sha256 = _publish_parts(store, source.key, records, folder / "part")
            run.write_unsampled(folder / "unsampled")
        receipt = ExtractReceipt(
            source=source.key,
            revision=source.revision,
            n_rows=run.n_rows,
            n_prompts=run.n_prompts,
            n_rejected=run.n_rejected.total(),
            n_not_sampled=run.n_not_sampled,
            rejections=dict(sorted(run.n_rejected.items())),
            part_keys=part_keys,
            rejections_key=rejections_key(source.key),
            sha256=sha256,
        )
        check_accounting(receipt)
        store.create_file(receipt.rejections_key, folder / "rejections")
        store.create_file(unsampled_key(source.key), folder / "unsampled")
    return receipt


def has_extracted(store: ArtifactStore, receipt: ExtractReceipt) -> bool:
    """Whether every object of an extraction is in the store; a kept receipt does not prove it."""
    keys = (*receipt.part_keys, receipt.rejections_key, unsampled_key(receipt.source))
    return all(store.head(key) is not None for key in keys)


def check_accounting(receipt: ExtractReceipt) -> None:
    """Check that every row read is a prompt, a rejection or not sampled, and is so once.

    Raises:
        AccountingError: The numbers do not add up.
    """
    n_out = receipt.n_prompts + receipt.n_rejected + receipt.n_not_sampled
    if n_out != receipt.n_rows or sum(receipt.rejections.values()) != receipt.n_rejected:
        raise AccountingError(
            f"{receipt.n_rows} rows were read, but {receipt.n_prompts} prompts, "
            f"{receipt.n_rejected} rejections and {receipt.n_not_sampled} not sampled came out.",
            where=f"source {receipt.source}",
        )


class _Extraction:
    """The state of one source's extraction: its counts, and where its rows go."""

    def __init__(
        self,
        source: ResolvedSource,
        config: SourceConfig,
        extraction: ExtractionConfig,
        candidates: Candidates,
        rejections: RecordWriter,
    ) -> None:
        self._source = source
        self._config = config
        self._extraction = extraction
        self._candidates = candidates
        self._rejections = rejections
        self._waiting: Iterator[Columns] = iter(())
        self.n_rows = 0
        self.n_prompts = 0
        self.n_not_sampled = 0
        self.n_rejected: Counter[str] = Counter()

    def collect(self, rows: Iterator[object]) -> None:
        """Read all rows: put conversations aside, write rejections."""
        seen = SeenPrompts()
        for row in rows:
            ref = self._refer(self.n_rows)
            self.n_rows += 1
            result = filter_row(row, ref, self._config) or normalize_row(row, ref, self._config)
            if isinstance(result, Rejection):
                self._reject(result)
                continue
            refusal = filter_normalized(result, ref, self._config, self._extraction)
            if refusal is not None:
                self._reject(refusal, own_id=result.own_id)
                continue
            prompt_id = hash_prompt(result.messages, result.tools)
            if not seen.add(prompt_id):
                refusal = Rejection("duplicate", "an earlier row is the same prompt", ref)
                self._reject(refusal, own_id=result.own_id, prompt_id=prompt_id)
                continue
            domain, rule = choose_domain(result, self._config)
            self._candidates.append(
                order_key(self._extraction.seed, prompt_id),
                {
                    "id": prompt_id,
                    "messages": orjson.dumps(result.messages).decode(),
                    "tools": result.tools,
                    "domain": domain,
                    "domain_rule": rule,
                    "row": ref.row,
                    "own_id": result.own_id,
                },
            )
        self._waiting = self._candidates.read_in_order()

    def check_shape(self) -> None:
        """Refuse a source of which no row has the shape that the mapping tells of."""
        if (
            self.n_rows
            and self.n_rejected.total() == self.n_rows
            and self.n_rejected.keys() <= _SHAPE_KINDS
        ):
            counts = ", ".join(f"{kind} {n}" for kind, n in self.n_rejected.most_common())
            raise SourceError(
                f"none of the {self.n_rows} rows has the shape that the mapping tells of "
                f"({counts}).",
                where=f"source {self._source.key} ({self._source.dataset})",
                remedy="Write one JSON object a line (JSON lines)."
                if self.n_rejected.keys() <= {"not_an_object"}
                else "Correct the source's mapping: paths, role_key, content_key, role_map.",
            )

    def render(self, template: ChatTemplate, model: ModelConfig) -> Iterator[Columns]:
        """Render in the run's order until the quota is full; gives whole records."""
        max_prompt_tokens = model.context_length - self._extraction.min_answer_tokens
        quota = self._config.quota or len(self._candidates)
        while batch := list(islice(self._waiting, min(_RENDERED_AT_ONCE, quota - self.n_prompts))):
            rendered = render_first_turns(
                [
                    (orjson.loads(one["messages"]), one["tools"], self._refer(one["row"]))
                    for one in batch
                ],
                template,
                thinking=model.thinking,
                max_prompt_tokens=max_prompt_tokens,
            )
            for record, ids in zip(batch, rendered, strict=True):
                if isinstance(ids, Rejection):
                    self._reject(ids, own_id=record["own_id"], prompt_id=record["id"])
                    continue
                self.n_prompts += 1
                place = {
                    "source_key": self._source.key,
                    "dataset": self._source.dataset,
                    "config": self._source.config,
                    "split": self._source.split,
                    "revision": self._source.revision,
                }
                yield {**record, **place, "prompt_token_ids": ids}

    def write_unsampled(self, path: Path) -> None:
        """Write the ids and rows that the quota left out."""
        with RecordWriter(path, UNSAMPLED_SCHEMA) as unsampled:
            for left in self._waiting:
                unsampled.append({"id": left["id"], "row": left["row"]})
        self.n_not_sampled = unsampled.n_rows

    def _refer(self, row: int) -> SourceRef:
        source = self._source
        return SourceRef(
            source.key, source.dataset, source.config, source.split, source.revision, row
        )

    def _reject(
        self, rejection: Rejection, *, own_id: str | None = None, prompt_id: str | None = None
    ) -> None:
        self.n_rejected[rejection.kind] += 1
        self._rejections.append(
            {
                "row": rejection.source.row,
                "kind": rejection.kind,
                "detail": rejection.detail,
                "own_id": own_id,
                "prompt_id": prompt_id,
            }
        )


def _publish_parts(
    store: ArtifactStore, source_key: str, records: Iterator[Columns], path: Path
) -> tuple[tuple[str, ...], str]:
    """Write the records to parts; gives the parts' keys and the hash over all records."""
    digest = hashlib.sha256()
    part_keys: list[str] = []
    record = next(records, None)
    while record is not None:
        with RecordWriter(path, PROMPT_SCHEMA) as part:
            while record is not None and part.n_rows < PROMPTS_PER_PART:
                digest.update(encode_record(record))
                part.append(record)
                record = next(records, None)
        part_keys.append(extracted_key(source_key, len(part_keys)))
        store.create_file(part_keys[-1], path)
    return tuple(part_keys), digest.hexdigest()
