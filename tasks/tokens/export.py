"""The dataset in the forms that trainers read, in a local folder.

Enters: shards of the merged dataset and, where the manifest refers to a base, its batches; or the
parts that count. Leaves: sharded files. It exists because SpecForge and speculators take JSON lines
only, load all of a file's rows, and hand every column but two to the chat template: so only
`input_ids` and `loss_mask` are written.

Source: the loaders of SpecForge 0.2.0 and speculators 0.9.0 (`input_ids`, `loss_mask`), and the
`messages` rows of TRL, NeMo and Model-Optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import pyarrow as pa

from tasks.completions.record import Completion
from tasks.errors import CorruptPart, KeyTaken
from tasks.prompts.record import Plan
from tasks.storage.record import ShardReceipt
from tasks.storage.store import ArtifactStore
from tasks.tokens.asked import AnsweredPart, iter_outcomes, read_asked
from tasks.tokens.parts import fetch_object
from tasks.tokens.record import Sample, sample_id
from tasks.tokens.rows import RowWriter, iter_batches
from tasks.tokens.rows import iter_rows as iter_batch_rows
from tasks.tokens.saved import SavedDatasetWriter

ROWS_PER_FILE = 10_000


def export_specforge(
    batches: Iterable[pa.RecordBatch], folder: Path, rows_per_file: int = ROWS_PER_FILE
) -> list[Path]:
    """Write rows as JSONL of `input_ids` and `loss_mask`; give the files.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A shard is not what its receipt says.
    """
    prepare_folder(folder)
    rows = (encode_specforge(sample) for batch in batches for sample in iter_batch_rows(batch))
    return _write_lines(rows, folder, rows_per_file)


def export_saved(
    batches: Iterable[pa.RecordBatch], folder: Path, rows_per_file: int = ROWS_PER_FILE
) -> list[Path]:
    """Write rows as a folder for `load_from_disk`: `input_ids`, `loss_mask`, `seq_len`.

    That is what speculators' training reads; give the files.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A shard is not what its receipt says.
    """
    prepare_folder(folder)
    with SavedDatasetWriter(folder, rows_per_file) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.files


def export_parquet(
    store: ArtifactStore,
    shards: Sequence[ShardReceipt],
    base: Iterable[pa.RecordBatch],
    folder: Path,
    rows_per_file: int = ROWS_PER_FILE,
) -> list[Path]:
    """Copy the shards as they are, and write a referred base's rows beside them; give the files.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A shard is not what its receipt says.
    """
    prepare_folder(folder)
    files: list[Path] = []
    for shard in shards:
        files.append(folder / f"part-{len(files):06d}.parquet")
        fetch_shard(store, shard, files[-1])
    waiting = iter(base)
    while (batch := next(waiting, None)) is not None:
        files.append(folder / f"part-{len(files):06d}.parquet")
        with RowWriter(files[-1]) as writer:
            writer.write(batch)
            while writer.n_rows < rows_per_file and (batch := next(waiting, None)) is not None:
                writer.write(batch)
    return files


def export_messages(
    store: ArtifactStore,
    plan: Plan,
    parts: Sequence[AnsweredPart],
    folder: Path,
    rows_per_file: int = ROWS_PER_FILE,
) -> list[Path]:
    """Write the answered conversations as `id`, `messages` and `tools`; give the files.

    Answers that were cut at max_tokens are left out: a template that renders them again would write
    an end that was never sampled.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A part or a chunk is not what it should be.
    """
    prepare_folder(folder)
    rows = (row for part in parts for row in _iter_messages(store, plan, part))
    return _write_lines(rows, folder, rows_per_file)


def iter_shards(store: ArtifactStore, shards: Sequence[ShardReceipt]) -> Iterator[pa.RecordBatch]:
    """Read a merged dataset, streamed, a local copy of one shard at a time.

    Raises:
        CorruptPart: A shard is not what its receipt says.
    """
    for shard in shards:
        with TemporaryDirectory(prefix="draftmill-export-") as scratch:
            path = Path(scratch) / "shard.parquet"
            fetch_shard(store, shard, path)
            yield from iter_batches(path)


def fetch_shard(store: ArtifactStore, shard: ShardReceipt, path: Path) -> None:
    """Copy a shard to a new local file and hold it against its receipt.

    Raises:
        CorruptPart: It is missing, or its bytes are others.
    """
    try:
        sha256, _ = fetch_object(store, shard.key, path)
    except FileNotFoundError as error:
        raise _lost(store, shard.key, "it is missing") from error
    if sha256 != shard.sha256:
        raise _lost(store, shard.key, "its bytes are not those of its receipt")


def encode_specforge(sample: Sample) -> bytes:
    """Give one sample as a JSON line, without its newline."""
    row = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)


def write_answer(completion: Completion) -> dict[str, Any]:
    """Give the answer as the last message of its conversation."""
    answer: dict[str, Any] = {"role": "assistant", "content": completion.content.strip()}
    if completion.reasoning:
        answer["reasoning_content"] = completion.reasoning.strip()
    if completion.tool_calls:
        answer["tool_calls"] = completion.tool_calls
    return answer


def prepare_folder(folder: Path) -> None:
    """Make the folder of an export; one that holds files is left alone.

    Raises:
        KeyTaken: The folder is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise KeyTaken(
            "files are there already; an export never writes over them.",
            where=str(folder),
            remedy="Name another folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)


def _iter_messages(store: ArtifactStore, plan: Plan, part: AnsweredPart) -> Iterator[bytes]:
    prompts = read_asked(store, plan, part.asked)
    for outcome in iter_outcomes(store, part):
        for completion in outcome.completions:
            if completion.finish_reason == "length":
                continue
            row = {
                "id": sample_id(completion.prompt_id, completion.sample, completion.generation),
                "messages": [*completion.messages, write_answer(completion)],
                # A JSON string: loaders that go through Arrow would unify the tools' fields.
                "tools": prompts[outcome.prompt_id, outcome.sample].tools,
            }
            yield orjson.dumps(row)


def _write_lines(rows: Iterable[bytes], folder: Path, rows_per_file: int) -> list[Path]:
    files: list[Path] = []
    waiting = iter(rows)
    while (row := next(waiting, None)) is not None:
        files.append(folder / f"part-{len(files):06d}.jsonl")
        with files[-1].open("xb") as file:
            file.write(row + b"\n")
            for _ in range(rows_per_file - 1):
                if (row := next(waiting, None)) is None:
                    break
                file.write(row + b"\n")
    return files


def _lost(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the object is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Run the same request again: it is made anew; then export again.",
    )
