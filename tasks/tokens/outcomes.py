"""Outcomes in, batches of samples out, with every count and check on the way.

Enters: the rows of a data part as JSON lines, the chunk's prompts. Leaves: canonical rows in a
RowWriter, and the counts of a receipt. It exists for speed: ids are parsed, concatenated and masked
in whole batches, where input_ids is the flat array of prompt, output, prompt, output, ... as it
was parsed, and texts are only looked at in the samples chosen for the check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from tasks.chat.template import ChatTemplate
from tasks.completions.record import Outcome
from tasks.errors import AccountingError, MaskError, TokenMismatch
from tasks.prompts.record import Plan, Prompt
from tasks.storage.record import PartReceipt
from tasks.tokens.check import check_sample, is_chosen
from tasks.tokens.config import TokensConfig
from tasks.tokens.ids import BadIds, Int32Array, Int64Array, parse_id_arrays
from tasks.tokens.record import SamplesReceipt, sample_id
from tasks.tokens.rows import ROW_GROUP_TOKENS, RowWriter, make_batch

_BATCH_BYTES = 6 * ROW_GROUP_TOKENS  # an id takes about six bytes as JSON
_MOST_NAMED = 10

_BoolArray = npt.NDArray[np.bool_]


class _Turn(msgspec.Struct):
    """What of a Completion every sample needs; the texts are skipped unparsed."""

    generation: int
    prompt_token_ids: msgspec.Raw
    output_token_ids: msgspec.Raw
    finish_reason: str


class _Row(msgspec.Struct):
    """What of an Outcome every sample needs."""

    prompt_id: str
    sample: int
    completions: list[_Turn]


_decode_row = msgspec.json.Decoder(_Row).decode
_decode_outcome = msgspec.json.Decoder(Outcome).decode


@dataclass(slots=True)
class _Pending:
    """A generation that waits for its batch; `line` is kept where it will be checked."""

    row_id: str
    prompt: Prompt
    turn: _Turn
    line: bytes | None


@dataclass(slots=True)
class _Counts:
    n_generations: int = 0
    n_samples: int = 0
    n_tokens: int = 0
    n_supervised_tokens: int = 0
    n_tiny_masks: int = 0
    n_checked: int = 0
    tiny: list[str] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)


class Assembly:
    """Rows in, batches of samples out, with all counts on the way."""

    def __init__(
        self,
        *,
        writer: RowWriter,
        plan: Plan,
        prompts: dict[str, Prompt],
        where: str,
        template: ChatTemplate,
        config: TokensConfig,
    ) -> None:
        """Prepare for one part; `prompts` are the chunk's by id, `where` is the part's key."""
        self._writer = writer
        self._plan = plan
        self._plan_sha = plan.sha
        self._prompts = prompts
        self._where = where
        self._template = template
        self._config = config
        self._pending: list[_Pending] = []
        self._n_pending_bytes = 0
        self._counts = _Counts()

    def run(self, lines: Iterator[bytes]) -> None:
        """Take every outcome of the part, one JSON object a line.

        Raises:
            MaskError: A sample supervises nothing, or too many supervise next to nothing.
            TokenMismatch: Ids disagree with the text, or lie outside the vocabulary.
            AccountingError: Not one outcome for each conversation of the chunk.
        """
        seen: set[tuple[str, int]] = set()
        for line in lines:
            row = _decode_row(line)
            prompt = self._prompts.get(row.prompt_id)
            if prompt is None or (row.prompt_id, row.sample) in seen:
                fault = "comes twice" if prompt else "is not in the chunk"
                raise AccountingError(
                    f"conversation {row.prompt_id}#s{row.sample} {fault}.", where=self._where
                )
            seen.add((row.prompt_id, row.sample))
            for turn in row.completions:
                self._take(row, turn, prompt, line)
            if self._n_pending_bytes >= _BATCH_BYTES:
                self._flush()
        self._flush()
        n_expected = len(self._prompts) * self._plan.n_samples
        if len(seen) != n_expected:
            raise AccountingError(
                f"the part has {len(seen)} conversations and the chunk {n_expected}.",
                where=self._where,
            )
        self._judge_tiny_masks()

    def tell(self, key: str, receipt: PartReceipt) -> SamplesReceipt:
        """Sum up, but for the file's own hash and size."""
        counts = self._counts
        return SamplesReceipt(
            data_key=receipt.key,
            data_sha256=receipt.sha256,
            key=key,
            sha256="",
            n_bytes=0,
            n_generations=counts.n_generations,
            n_samples=counts.n_samples,
            n_dropped=dict(sorted(counts.dropped.items())),
            n_tokens=counts.n_tokens,
            n_supervised_tokens=counts.n_supervised_tokens,
            n_tiny_masks=counts.n_tiny_masks,
            finish_reasons=dict(sorted(counts.finish_reasons.items())),
            n_checked=counts.n_checked,
        )

    def _take(self, row: _Row, turn: _Turn, prompt: Prompt, line: bytes) -> None:
        counts = self._counts
        counts.n_generations += 1
        if turn.finish_reason == "length" and self._config.truncated == "drop":
            counts.dropped["truncated"] += 1
            return
        row_id = sample_id(row.prompt_id, row.sample, turn.generation)
        # The first one is always checked, so that no part goes unlooked at.
        chosen = (not counts.n_checked and not self._pending) or is_chosen(
            self._plan_sha, row_id, self._config.check_share
        )
        self._pending.append(_Pending(row_id, prompt, turn, line if chosen else None))
        self._n_pending_bytes += len(line)

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
        limit = self._config.max_length
        if limit is not None and seq_lens.max() > limit:
            kept: _BoolArray = seq_lens <= limit
            self._counts.dropped["too_long"] += int((~kept).sum())
            by_token = np.repeat(kept, seq_lens)
            flat, mask = flat[by_token], mask[by_token]
            pending = [row for row, keep in zip(pending, kept, strict=True) if keep]
            seq_lens, output_lens = seq_lens[kept], output_lens[kept]
        if pending:
            self._count(pending, seq_lens, output_lens)
            self._writer.write(
                make_batch(
                    ids=[row.row_id for row in pending],
                    sources=[row.prompt.source.key for row in pending],
                    domains=[row.prompt.domain for row in pending],
                    flat_ids=flat,
                    flat_mask=mask,
                    seq_lens=seq_lens,
                    finish_reasons=[row.turn.finish_reason for row in pending],
                )
            )
        self._pending = []
        self._n_pending_bytes = 0

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
            names = [pending[i].row_id for i in empty[:_MOST_NAMED]]
            raise MaskError(
                f"{len(empty)} of {len(pending)} samples supervise no token at all: "
                f"{', '.join(names)}.",
                where=self._where,
                remedy="Look at these answers; the server returned no output ids for them.",
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
            completion = next(
                completion
                for completion in _decode_outcome(row.line).completions
                if completion.generation == row.turn.generation
            )
            check_sample(
                completion,
                flat[start:prompt_end].tolist(),
                flat[prompt_end:output_end].tolist(),
                tools=row.prompt.tools,
                plan=self._plan,
                template=self._template,
            )
            self._counts.n_checked += 1

    def _count(
        self, pending: Sequence[_Pending], seq_lens: Int64Array, output_lens: Int64Array
    ) -> None:
        counts = self._counts
        tiny = np.flatnonzero(output_lens < self._config.tiny_mask_tokens)
        counts.n_samples += len(pending)
        counts.n_tokens += int(seq_lens.sum())
        counts.n_supervised_tokens += int(output_lens.sum())
        counts.n_tiny_masks += len(tiny)
        counts.tiny += [pending[i].row_id for i in tiny[: _MOST_NAMED - len(counts.tiny)]]
        counts.finish_reasons.update(row.turn.finish_reason for row in pending)

    def _judge_tiny_masks(self) -> None:
        counts = self._counts
        if counts.n_tiny_masks > self._config.tiny_mask_share * counts.n_samples:
            raise MaskError(
                f"{counts.n_tiny_masks} of {counts.n_samples} samples "
                f"({counts.n_tiny_masks / counts.n_samples:.1%}) supervise fewer than "
                f"{self._config.tiny_mask_tokens} tokens, more than the "
                f"{self._config.tiny_mask_share:.1%} allowed: {', '.join(counts.tiny)}.",
                where=self._where,
                remedy="Look at these answers; raise tokens.tiny_mask_share if they are sound.",
            )

    def _name(self, row: _Pending) -> str:
        return f"{self._where}, sample {row.row_id}"
