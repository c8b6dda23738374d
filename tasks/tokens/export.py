"""The dataset in the forms that trainers read, in a local folder.

Enters: shards of the merged dataset, or data parts of outcomes. Leaves: sharded JSONL. It exists
because SpecForge and speculators take JSON lines only, load all of a file's rows, and hand every
column but two to the chat template: so only `input_ids` and `loss_mask` are written.

Source: the loaders of SpecForge 0.2.0 and speculators 0.9.0 (`input_ids`, `loss_mask`), and the
`messages` rows of TRL, NeMo and Model-Optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import orjson

from tasks.completions.record import Outcome
from tasks.errors import CorruptPart, KeyTaken
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import Chunk
from tasks.storage.part import iter_rows
from tasks.storage.record import PartReceipt, ShardReceipt
from tasks.storage.store import ArtifactStore
from tasks.tokens.parts import fetch_object
from tasks.tokens.record import Sample, sample_id
from tasks.tokens.rows import iter_batches
from tasks.tokens.rows import iter_rows as iter_batch_rows

_decode_outcome = msgspec.json.Decoder(Outcome).decode


def export_specforge(
    store: ArtifactStore, shards: Sequence[ShardReceipt], folder: Path, rows_per_file: int = 10_000
) -> list[Path]:
    """Write the dataset as JSONL of `input_ids` and `loss_mask`; give the files.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A shard is not what its receipt says.
    """
    rows = (encode_specforge(sample) for sample in iter_dataset(store, shards))
    return _write_files(rows, folder, rows_per_file)


def export_messages(
    store: ArtifactStore,
    parts: Sequence[tuple[Chunk, PartReceipt]],
    folder: Path,
    rows_per_file: int = 10_000,
) -> list[Path]:
    """Write the answered conversations as `id`, `messages` and `tools`; give the files.

    Raises:
        KeyTaken: The folder exists and is not empty.
        CorruptPart: A part or a chunk is not what it should be.
    """
    rows = (row for chunk, part in parts for row in _iter_messages(store, chunk, part))
    return _write_files(rows, folder, rows_per_file)


def iter_dataset(store: ArtifactStore, shards: Sequence[ShardReceipt]) -> Iterator[Sample]:
    """Read the samples of a merged dataset, streamed, a local copy of one shard at a time.

    Raises:
        CorruptPart: A shard is not what its receipt says.
    """
    for shard in shards:
        with TemporaryDirectory(prefix="draftmill-export-") as scratch:
            path = Path(scratch) / "shard.parquet"
            try:
                sha256, _ = fetch_object(store, shard.key, path)
            except FileNotFoundError as error:
                raise _lost(store, shard.key, "it is missing") from error
            if sha256 != shard.sha256:
                raise _lost(store, shard.key, "its bytes are not those of its receipt")
            for batch in iter_batches(path):
                yield from iter_batch_rows(batch)


def encode_specforge(sample: Sample) -> bytes:
    """Give one sample as a JSON line, without its newline."""
    row = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)


def _iter_messages(store: ArtifactStore, chunk: Chunk, part: PartReceipt) -> Iterator[bytes]:
    tools = {prompt.id: prompt.tools for prompt in read_chunk(store, chunk)}
    if store.head(part.key) is None:
        raise _lost(store, part.key, "it is missing")
    for line in iter_rows(store, part.key):
        for completion in _decode_outcome(line).completions:
            answer: dict[str, Any] = {"role": "assistant", "content": completion.content.strip()}
            if completion.reasoning:
                answer["reasoning_content"] = completion.reasoning.strip()
            if completion.tool_calls:
                answer["tool_calls"] = completion.tool_calls
            row = {
                "id": sample_id(completion.prompt_id, completion.sample, completion.generation),
                "messages": [*completion.messages, answer],
                # A JSON string: loaders that go through Arrow would unify the tools' fields.
                "tools": tools[completion.prompt_id],
            }
            yield orjson.dumps(row)


def _write_files(rows: Iterable[bytes], folder: Path, rows_per_file: int) -> list[Path]:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise KeyTaken(
            "files are there already; an export never writes over them.",
            where=str(folder),
            remedy="Name another folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    lines: list[bytes] = []
    for row in rows:
        lines.append(row + b"\n")
        if len(lines) == rows_per_file:
            files.append(_write_file(folder, len(files), lines))
            lines = []
    if lines:
        files.append(_write_file(folder, len(files), lines))
    return files


def _lost(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the object is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Run the same request again: it is made anew; then export again.",
    )


def _write_file(folder: Path, index: int, lines: Iterable[bytes]) -> Path:
    path = folder / f"part-{index:06d}.jsonl"
    with path.open("xb") as file:
        file.writelines(lines)
    return path
