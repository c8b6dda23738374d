"""Extracted prompts of all sources to chunks, and the plan that freezes them.

Enters: the receipts of extraction. Leaves: one Parquet file a chunk, `_run/plan.json`, and prompts
again for whoever works on a chunk. It exists so that what is answered is fixed, down to the order,
before the first request is sent.

Each source's parts are in the run's order already, so that merges over them are all it takes:
memory holds a part a source and a chunk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import AccountingError, CorruptPart, SourceError
from tasks.prompts.config import ExtractionConfig
from tasks.prompts.extract import check_accounting
from tasks.prompts.mix import share_canary
from tasks.prompts.prompt_file import (
    PROMPT_SCHEMA,
    Columns,
    RecordWriter,
    encode_record,
    iter_records,
    to_prompt,
)
from tasks.prompts.record import Chunk, ExtractReceipt, Plan, Prompt
from tasks.prompts.selection import Selection, Wishes
from tasks.storage.layout import plan_key, prompts_key, retry_prefix
from tasks.storage.record import RetriedConversation
from tasks.storage.request import freeze_json
from tasks.storage.scratch import open_scratch
from tasks.storage.store import ArtifactStore

NO_WISHES = Wishes()
_REPLAN = (
    "Move this object and _run/plan.json away and run the same request again: both are made again "
    "from what was extracted, and the parts that are there still count."
)


def make_plan(
    store: ArtifactStore,
    *,
    request_sha: str,
    receipts: Sequence[ExtractReceipt],
    model: ModelConfig,
    template: ChatTemplate,
    extraction: ExtractionConfig,
    sampling: Mapping[str, float | int],
    n_samples: int,
    max_tokens: int,
    spool_dir: Path,
    wishes: Wishes = NO_WISHES,
) -> Plan:
    """Cut the extracted prompts into chunks and freeze the plan.

    Args:
        store: The run's store, which holds the extracted parts.
        request_sha: Identity of the request.
        receipts: One a source, in the configuration's order: of prompts that several sources
            have, the first source's survives.
        model: The target.
        template: Its tokenizer and chat template.
        extraction: Seed and sizes.
        sampling: Every sampling parameter by name.
        n_samples: Answers a prompt.
        max_tokens: Longest answer, in tokens.
        spool_dir: Local folder for work in progress.
        wishes: Near-duplicates across sources, and the mix.

    Raises:
        SourceError: No source gave a prompt.
        AccountingError: Prompts in are not prompts out.
        CorruptPart: Extracted prompts are not what their receipt says.
        RequestMismatch: Another plan stands at this prefix; the differing fields are named.
    """
    for receipt in receipts:
        check_accounting(receipt)
    with open_scratch(spool_dir) as folder:
        selection = Selection(store, receipts, extraction.seed, wishes, folder)
        n_taken = selection.n_taken
        if not sum(n_taken):
            raise SourceError(
                f"no source gave a prompt ({_list_reasons(receipts, selection)}).",
                remedy="Look into the rejections, and widen filters, languages, the mix or "
                "context_length.",
            )
        shares = share_canary(n_taken, extraction.canary_size)
        chunks = sorted(
            _write_chunks(selection, extraction.chunk_size, shares, folder), key=lambda c: c.id
        )
        plan = Plan(
            request_sha=request_sha,
            model=model.path,
            model_revision=model.revision,
            dtype=model.dtype,
            quantization=model.quantization,
            tokenizer_sha256=template.tokenizer_sha256,
            chat_template_sha256=template.chat_template_sha256,
            context_length=model.context_length,
            max_tokens=max_tokens,
            thinking=model.thinking,
            reasoning_parser=model.reasoning_parser,
            tool_call_parser=model.tool_call_parser,
            sampling=dict(sampling),
            n_samples=n_samples,
            extracted=tuple(receipts),
            n_duplicates=selection.n_duplicates,
            n_near_duplicates=selection.n_near_duplicates,
            n_outside_mix=selection.n_outside_mix,
            mix=selection.mix,
            chunks=tuple(chunks),
        )
        n_extracted = sum(receipt.n_prompts for receipt in receipts)
        if plan.n_prompts + plan.n_duplicates + plan.n_outside_mix != n_extracted:
            raise AccountingError(
                f"{n_extracted} prompts were extracted, but {plan.n_prompts} planned, "
                f"{plan.n_duplicates} dropped as duplicates and {plan.n_outside_mix} left out by "
                "the mix.",
                where=plan_key(),
            )
        value = plan.model_dump(mode="json")
        # Another plan is refused before any of its chunks is written.
        if store.head(plan_key()) is not None:
            freeze_json(store, plan_key(), value, "plan")
        for chunk in chunks:
            store.create_file(chunk.prompts_key, folder / str(chunk.id))
        freeze_json(store, plan_key(), value, "plan")
    return plan


def read_plan(store: ArtifactStore) -> Plan | None:
    """Read the plan that is frozen at this prefix; None where none is yet.

    Raises:
        CorruptPart: What stands there is no plan.
    """
    try:
        return Plan.model_validate_json(store.get(plan_key()))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise CorruptPart(
            f"the plan there is damaged ({error.error_count()} faults).",
            where=f"{store.uri}/{plan_key()}",
            remedy="Move the object away and run the same request again: the same plan is made "
            "from what was extracted.",
        ) from error


def read_chunk(store: ArtifactStore, chunk: Chunk) -> list[Prompt]:
    """Read a chunk's prompts in order.

    Raises:
        CorruptPart: They are missing, or not what the plan says.
    """
    try:
        records = list(iter_records(store.get(chunk.prompts_key)))
    except (FileNotFoundError, OSError, ValueError) as error:
        raise _corrupt(chunk.prompts_key, type(error).__name__, _REPLAN) from error
    digest = hashlib.sha256()
    for record in records:
        digest.update(encode_record(record))
    if digest.hexdigest() != chunk.input_sha256 or len(records) != chunk.n_prompts:
        raise _corrupt(chunk.prompts_key, "another hash or number of prompts", _REPLAN)
    return [to_prompt(record) for record in records]


def read_retried(
    store: ArtifactStore, plan: Plan, retried: Sequence[RetriedConversation]
) -> dict[tuple[str, int], Prompt]:
    """Read the prompts of a retry's conversations, by (prompt id, sample), in their order.

    Raises:
        CorruptPart: A chunk's prompts are missing, or not what the plan says.
        AccountingError: A prompt is not in the chunk that it was asked in.
    """
    wanted = {entry.prompt_id for entry in retried}
    chunk_ids = {entry.chunk_id for entry in retried}
    found = {
        prompt.id: prompt
        for chunk in plan.chunks
        if chunk.id in chunk_ids
        for prompt in read_chunk(store, chunk)
        if prompt.id in wanted
    }
    if len(found) != len(wanted):
        raise AccountingError(
            f"{len(wanted) - len(found)} of {len(wanted)} prompts to ask anew are in no chunk.",
            where=retry_prefix(),
        )
    return {(entry.prompt_id, entry.sample): found[entry.prompt_id] for entry in retried}


def _list_reasons(receipts: Sequence[ExtractReceipt], selection: Selection) -> str:
    counts = "; ".join(f"{receipt.source}: {receipt.rejections}" for receipt in receipts)
    if selection.n_outside_mix:
        counts += f"; the mix left out {selection.n_outside_mix}"
    return counts


def _corrupt(key: str, reason: str, remedy: str) -> CorruptPart:
    return CorruptPart(
        f"the prompts there are not what was recorded ({reason}).",
        where=key,
        remedy=remedy,
    )


def _write_chunks(
    selection: Selection,
    chunk_size: int,
    shares: Sequence[int],
    folder: Path,
) -> Iterator[Chunk]:
    """Write each chunk to `folder/<chunk id>`: the canary, then the rest in the run's order."""
    canary: list[Columns] = []
    rest: list[Columns] = []
    n_taken = [0 for _ in shares]
    chunk_id = 1
    for index, record in selection.iter_taken():
        if n_taken[index] < shares[index]:
            n_taken[index] += 1
            canary.append(record)
            continue
        rest.append(record)
        if len(rest) == chunk_size:
            yield _write_chunk(chunk_id, rest, folder)
            chunk_id, rest = chunk_id + 1, []
    if rest:
        yield _write_chunk(chunk_id, rest, folder)
    yield _write_chunk(0, canary, folder)


def _write_chunk(chunk_id: int, records: Sequence[Columns], folder: Path) -> Chunk:
    digest = hashlib.sha256()
    with RecordWriter(folder / str(chunk_id), PROMPT_SCHEMA) as writer:
        for record in records:
            digest.update(encode_record(record))
            writer.append(record)
    return Chunk(
        id=chunk_id,
        n_prompts=len(records),
        prompts_key=prompts_key(chunk_id),
        input_sha256=digest.hexdigest(),
    )
