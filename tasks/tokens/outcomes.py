"""Outcomes in, batches of samples out, with every count and check on the way.

Enters: the rows of a data part as JSON lines, the chunk's prompts. Leaves: canonical rows in a
RowWriter, and the counts of a receipt. It exists for speed: ids are parsed, concatenated and masked
in whole batches, where input_ids is the flat array of prompt, output, prompt, output, ... as it
was parsed, and texts are only looked at in the samples chosen for the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tasks.chat.template import ChatTemplate
from tasks.completions.record import Completion
from tasks.errors import AccountingError, MaskError, TokenMismatch
from tasks.prompts.record import Plan, Prompt
from tasks.storage.record import PartReceipt
from tasks.tokens.check import check_sample, is_chosen
from tasks.tokens.config import TokensConfig
from tasks.tokens.ids import BadIds, Int8Array, Int32Array, Int64Array, parse_id_arrays
from tasks.tokens.length import fit_length, mark_kept_tokens
from tasks.tokens.record import RETOKENIZED, SamplesReceipt, sample_id
from tasks.tokens.retokenize import NotRetokenizable, retokenize_completion
from tasks.tokens.rows import ROW_GROUP_TOKENS, RowWriter, make_batch
from tasks.tokens.tally import MOST_NAMED, SamplesTally
from tasks.tokens.turns import Row, Turn, decode_row, find_completion

_BATCH_BYTES = 6 * ROW_GROUP_TOKENS  # an id takes about six bytes as JSON


@dataclass(slots=True)
class _Pending:
    """A generation that waits for its batch; `line` is kept where it will be checked."""

    row_id: str
    prompt: Prompt
    turn: Turn
    line: bytes | None


class Assembly:
    """Rows in, batches of samples out, with all counts on the way."""

    def __init__(
        self,
        *,
        writer: RowWriter,
        plan: Plan,
        asked: Mapping[tuple[str, int], Prompt],
        where: str,
        template: ChatTemplate,
        config: TokensConfig,
    ) -> None:
        """Prepare for one part: `asked` is what it must answer, by (prompt id, sample)."""
        self._writer = writer
        self._plan = plan
        self._plan_sha = plan.sha
        self._asked = asked
        self._where = where
        self._template = template
        self._config = config
        self._pending: list[_Pending] = []
        self._n_pending_bytes = 0
        self._tally = SamplesTally()

    def run(self, lines: Iterator[bytes]) -> None:
        """Take every outcome of the part, one JSON object a line.

        Raises:
            MaskError: A sample supervises nothing, or too many supervise next to nothing.
            TokenMismatch: Ids disagree with the text, or lie outside the vocabulary.
            AccountingError: Not one outcome for each conversation of the part.
        """
        seen: set[tuple[str, int]] = set()
        for line in lines:
            row = decode_row(line)
            conversation = (row.prompt_id, row.sample)
            prompt = self._asked.get(conversation)
            if prompt is None or conversation in seen:
                fault = "comes twice" if prompt else "is not in the chunk"
                raise AccountingError(
                    f"conversation {row.prompt_id}#s{row.sample} {fault}.", where=self._where
                )
            seen.add(conversation)
            for turn in row.completions:
                self._take(row, turn, prompt, line)
            if self._n_pending_bytes >= _BATCH_BYTES:
                self._flush()
        self._flush()
        if len(seen) != len(self._asked):
            raise AccountingError(
                f"the part has {len(seen)} conversations and the chunk {len(self._asked)}.",
                where=self._where,
            )
        self._tally.judge_tiny_masks(self._config, self._where)

    def tell(self, key: str, receipt: PartReceipt) -> SamplesReceipt:
        """Sum up, but for the file's own hash and size."""
        return self._tally.tell(key, receipt)

    def _take(self, row: Row, turn: Turn, prompt: Prompt, line: bytes) -> None:
        tally = self._tally
        tally.n_generations += 1
        if turn.finish_reason == "length" and self._config.truncated == "drop":
            tally.dropped["truncated"] += 1
            return
        if self._config.retokenize and bytes(turn.output_token_ids) == b"[]":
            try:
                turn = self._retokenize(find_completion(line, turn.generation), prompt)
            except NotRetokenizable:
                tally.dropped["not_retokenizable"] += 1
                return
        row_id = sample_id(row.prompt_id, row.sample, turn.generation)
        # The first one is always checked, so that no part goes unlooked at.
        chosen = (not tally.n_checked and not self._pending) or is_chosen(
            self._plan_sha, row_id, self._config.check_share
        )
        self._pending.append(_Pending(row_id, prompt, turn, line if chosen else None))
        self._n_pending_bytes += len(line)

    def _retokenize(self, completion: Completion, prompt: Prompt) -> Turn:
        prompt_ids, output_ids = retokenize_completion(
            completion, prompt.tools, plan=self._plan, template=self._template
        )
        return Turn(
            generation=completion.generation,
            prompt_token_ids=msgspec.Raw(msgspec.json.encode(prompt_ids)),
            output_token_ids=msgspec.Raw(msgspec.json.encode(output_ids)),
            token_source=RETOKENIZED,
            finish_reason=completion.finish_reason,
        )

    def _flush(self) -> None:
        pending = self._pending
        if not pending:
            return
        flat, lengths = self._parse(pending)
        prompt_lens, output_lens = lengths[::2], lengths[1::2]
        seq_lens = prompt_lens + output_lens
        self._check_masks(pending, output_lens)
        self._check_vocabulary(pending, flat, seq_lens)
        self._check_texts(pending, flat, lengths)
        mask = np.repeat(np.tile(np.array([0, 1], dtype=np.int8), len(pending)), lengths)
        kept, n_cut = fit_length(prompt_lens, output_lens, self._config)
        if n_cut.any() or not kept.all():
            if not kept.all():
                self._tally.dropped["too_long"] += int((~kept).sum())
            self._tally.n_cut += int((n_cut > 0).sum())
            by_token = mark_kept_tokens(kept, n_cut, seq_lens)
            flat, mask = flat[by_token], mask[by_token]
            pending = [row for row, keep in zip(pending, kept, strict=True) if keep]
            seq_lens, output_lens = (seq_lens - n_cut)[kept], output_lens[kept]
        self._write(pending, flat, mask, seq_lens, output_lens)
        self._pending = []
        self._n_pending_bytes = 0

    def _write(
        self,
        rows: Sequence[_Pending],
        flat: Int32Array,
        mask: Int8Array,
        seq_lens: Int64Array,
        output_lens: Int64Array,
    ) -> None:
        if not rows:
            return
        row_ids = [row.row_id for row in rows]
        finish_reasons = [row.turn.finish_reason for row in rows]
        token_sources = [row.turn.token_source for row in rows]
        self._tally.add(row_ids, seq_lens, output_lens, self._config)
        self._tally.finish_reasons.update(finish_reasons)
        self._tally.token_sources.update(token_sources)
        self._writer.write(
            make_batch(
                ids=row_ids,
                sources=[row.prompt.source.key for row in rows],
                domains=[row.prompt.domain for row in rows],
                flat_ids=flat,
                flat_mask=mask,
                seq_lens=seq_lens,
                finish_reasons=finish_reasons,
                token_sources=token_sources,
            )
        )

    def _parse(self, pending: Sequence[_Pending]) -> tuple[Int32Array, Int64Array]:
        arrays = [
            bytes(raw)
            for row in pending
            for raw in (row.turn.prompt_token_ids, row.turn.output_token_ids)
        ]
        try:
            return parse_id_arrays(arrays)
        except BadIds as error:
            row, what = pending[error.index // 2], ("prompt", "output")[error.index % 2]
            raise TokenMismatch(
                f"the {what} ids are no ids: {error.reason}.", where=self._name(row)
            ) from error

    def _check_masks(self, pending: Sequence[_Pending], output_lens: Int64Array) -> None:
        empty = np.flatnonzero(output_lens == 0)
        if len(empty):
            names = [pending[i].row_id for i in empty[:MOST_NAMED]]
            raise MaskError(
                f"{len(empty)} of {len(pending)} samples supervise no token at all: "
                f"{', '.join(names)}.",
                where=self._where,
                remedy="Look at these answers: no output ids were returned for them. Where a "
                "server gives text alone, tokens.retokenize makes ids of it.",
            )

    def _check_vocabulary(
        self, pending: Sequence[_Pending], flat: Int32Array, seq_lens: Int64Array
    ) -> None:
        if flat.max() < self._template.vocab_size:
            return
        place = int(np.argmax(flat))
        row = pending[int(np.searchsorted(np.cumsum(seq_lens), place, side="right"))]
        raise TokenMismatch(
            f"id {flat[place]} lies outside the tokenizer's vocabulary "
            f"(0 to {self._template.vocab_size - 1}).",
            where=self._name(row),
            remedy="Serve the model that model.tokenizer belongs to.",
        )

    def _check_texts(
        self, pending: Sequence[_Pending], flat: Int32Array, lengths: Int64Array
    ) -> None:
        ends = np.cumsum(lengths)
        for index, row in enumerate(pending):
            if row.line is None:
                continue
            prompt_end, output_end = ends[2 * index], ends[2 * index + 1]
            start = prompt_end - lengths[2 * index]
            if row.turn.token_source == RETOKENIZED:
                continue  # held against its text when it was made
            completion = find_completion(row.line, row.turn.generation)
            ids = flat[start:prompt_end].tolist(), flat[prompt_end:output_end].tolist()
            check_sample(
                completion,
                *ids,
                tools=row.prompt.tools,
                plan=self._plan,
                template=self._template,
            )
            self._tally.n_checked += 1
            self._measure_drift(completion, ids, row)

    def _measure_drift(
        self, completion: Completion, ids: tuple[list[int], list[int]], row: _Pending
    ) -> None:
        """Re-tokenise a sample that has its ids: what the second-best way would have made of it."""
        if not self._config.retokenize:
            return
        drift = self._tally.drift
        drift["compared"] += 1
        try:
            prompt_ids, output_ids = retokenize_completion(
                completion, row.prompt.tools, plan=self._plan, template=self._template
            )
        except NotRetokenizable:
            drift["not_retokenizable"] += 1
            return
        drift["prompt_differs"] += prompt_ids != ids[0]
        drift["answer_differs"] += output_ids != ids[1]

    def _name(self, row: _Pending) -> str:
        return f"{self._where}, sample {row.row_id}"
