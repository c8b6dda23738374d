"""Verification: what the store holds against what the manifest says, object by object.

Enters: a store. Leaves: a Verdict that names each fault with what to do. It exists so that a
dataset can be trusted, or mended, years after the run and without it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import pyarrow.lib
import pyarrow.parquet
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.errors import CorruptPart
from tasks.storage.frames import Meter
from tasks.storage.manifest import read_latest
from tasks.storage.part import peek, read_receipt
from tasks.storage.record import Manifest, PartFooter, PartReceipt, ShardReceipt
from tasks.storage.request import hash_json
from tasks.storage.store import ArtifactStore

_BLOCK = 1 << 20
_STATUSES = ("completed", "truncated", "partial", "failed")
_REGENERATE = "run the same request again: a new revision of the part will replace it"
_REMAKE = "run the same request again: it is made anew from the data parts"


class Verdict(BaseModel):
    """What verification found; `ok` means no problem at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    n_objects: int = Field(description="Objects that the manifest names.")
    problems: tuple[str, ...] = Field(description="Each names the object and what to do.")
    counts: dict[str, int] = Field(description="What was counted on the way.")


class _SamplesEntry(BaseModel):
    """What verification needs of a SamplesReceipt, a record of a room above this one."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    data_key: str
    data_sha256: str
    key: str
    sha256: str
    n_bytes: int
    n_generations: int
    n_samples: int
    n_dropped: dict[str, int]


class _RowStatus(msgspec.Struct):
    """The one field of a row that accounting needs."""

    status: str


def verify_dataset(store: ArtifactStore, *, read_data_share: float = 1.0) -> Verdict:
    """Hold sizes, hashes, rows and accounting against the latest manifest.

    Args:
        store: The run's store.
        read_data_share: Share of the objects that are read in full, chosen by their keys and so
            the same at each call; of the others only the size, and a part's ends, are checked.
    """
    manifest = read_latest(store)
    if manifest is None:
        problem = f"{store.uri}: there is no valid manifest: the run is not finished; run it again"
        return Verdict(ok=False, n_objects=0, problems=(problem,), counts={})
    counts: Counter[str] = Counter()
    problems = [
        *_check_parts(store, manifest.parts, read_data_share, counts),
        *_check_samples(store, manifest, read_data_share, counts),
        *_check_shards(store, manifest.shards, read_data_share, counts),
        *_check_accounting(manifest),
        *_find_extra(store, manifest),
    ]
    return Verdict(
        ok=not problems,
        n_objects=len(manifest.parts) + len(manifest.samples) + len(manifest.shards),
        problems=tuple(problems),
        counts=dict(counts),
    )


def find_damaged_shard(store: ArtifactStore, shards: Iterable[ShardReceipt]) -> str | None:
    """Name the first shard that is missing or has other bytes than its receipt says."""
    for shard in shards:
        fault = _size_fault(store, shard.key, shard.n_bytes)
        if fault or _hash_fault(store, shard.key, shard.sha256):
            return shard.key
    return None


def _check_parts(
    store: ArtifactStore, parts: Iterable[PartReceipt], share: float, counts: Counter[str]
) -> Iterator[str]:
    for part in parts:
        counts["n_parts"] += 1
        counts["n_rows"] += part.footer.n_rows
        fault = _size_fault(store, part.key, part.n_bytes)
        if fault:
            yield f"{part.key}: {fault}; {_REGENERATE}"
            continue
        try:
            if not _chosen(part.key, share):
                if peek(store, part.key) != (part.header, part.footer):
                    yield f"{part.key}: header or footer is not the manifest's; {_REGENERATE}"
                continue
            counts["n_read_in_full"] += 1
            statuses: Counter[str] = Counter()
            receipt = read_receipt(store, part.key, partial(_note, statuses))
        except CorruptPart as error:
            yield f"{part.key}: {error.what.rstrip('.')}; {_REGENERATE}"
            continue
        if receipt != part:
            yield f"{part.key}: it is another part than the manifest's; {_REGENERATE}"
        elif statuses != _ends_of(part.footer):
            yield f"{part.key}: its rows end otherwise than its footer says; {_REGENERATE}"


def _check_samples(
    store: ArtifactStore, manifest: Manifest, share: float, counts: Counter[str]
) -> Iterator[str]:
    try:
        entries = [_SamplesEntry.model_validate(sample) for sample in manifest.samples]
    except ValidationError as error:
        name = f"manifest r{manifest.revision:04d}"
        yield f"{name}: samples has {error.error_count()} faults; take an earlier revision"
        return
    made_from = {(entry.data_key, entry.data_sha256) for entry in entries}
    for part in manifest.parts:
        if (part.key, part.sha256) not in made_from:
            yield f"{part.key}: no samples were made from it; {_REMAKE}"
    generated = {part.key: part.footer.n_generations for part in manifest.parts}
    for entry in entries:
        counts["n_sample_parts"] += 1
        counts["n_samples"] += entry.n_samples
        fault = _size_fault(store, entry.key, entry.n_bytes)
        if not fault and _chosen(entry.key, share):
            counts["n_read_in_full"] += 1
            fault = _hash_fault(store, entry.key, entry.sha256)
        if not fault and entry.n_generations != entry.n_samples + sum(entry.n_dropped.values()):
            fault = "generations are not samples + dropped ones"
        if not fault and entry.n_generations != generated.get(entry.data_key):
            fault = f"it was made from {entry.n_generations} generations, not those of its part"
        if fault:
            yield f"{entry.key}: {fault}; {_REMAKE}"


def _check_shards(
    store: ArtifactStore, shards: Iterable[ShardReceipt], share: float, counts: Counter[str]
) -> Iterator[str]:
    for shard in shards:
        counts["n_shards"] += 1
        counts["n_shard_rows"] += shard.n_rows
        fault = _size_fault(store, shard.key, shard.n_bytes)
        if not fault and _chosen(shard.key, share):
            counts["n_read_in_full"] += 1
            fault = _hash_fault(store, shard.key, shard.sha256, n_rows=shard.n_rows)
        if fault:
            yield f"{shard.key}: {fault}; {_REMAKE}"


def _check_accounting(manifest: Manifest) -> Iterator[str]:
    name = f"manifest r{manifest.revision:04d}"
    if hash_json(manifest.plan) != manifest.plan_sha:
        yield f"{name}: the plan's hash is not {manifest.plan_sha}; take an earlier revision"
    asked = {
        chunk["id"]: chunk["n_prompts"] * manifest.plan.get("n_samples", 1)
        for chunk in manifest.plan.get("chunks", ())
    }
    got = Counter[int]()
    totals = Counter[str]()
    for part in manifest.parts:
        got[part.header.chunk_id] += part.footer.n_rows
        totals["n_conversations"] += part.footer.n_rows
        totals.update({f"n_{status}": n for status, n in _ends_of(part.footer).items()})
        if part.header.plan_sha != manifest.plan_sha:
            yield f"{part.key}: it answers another plan; {_REGENERATE}"
    for chunk_id in sorted({*asked, *got}):
        if asked.get(chunk_id) != got.get(chunk_id):
            yield (
                f"chunk {chunk_id}: the plan asks for {asked.get(chunk_id, 0)} conversations and "
                f"the parts hold {got.get(chunk_id, 0)}; run the same request again"
            )
    totals["n_dataset_rows"] = sum(shard.n_rows for shard in manifest.shards)
    for field in ("n_conversations", *(f"n_{status}" for status in _STATUSES), "n_dataset_rows"):
        counted = manifest.counts.get(field)
        if counted != totals[field]:
            yield (
                f"{name}: {field} is {counted} and its objects hold {totals[field]}; "
                "take an earlier revision"
            )


def _find_extra(store: ArtifactStore, manifest: Manifest) -> Iterator[str]:
    known = {part.key for part in manifest.parts} | set(manifest.supersedes)
    for stat in store.list("data/"):
        if stat.key not in known:
            yield (
                f"{stat.key}: the manifest neither lists nor supersedes it; if a run is under "
                "way let it end, else move the object away"
            )
    shards = {shard.key for shard in manifest.shards}
    for folder in sorted({key.rpartition("/")[0] for key in shards}):
        for stat in store.list(f"{folder}/"):
            if stat.key not in shards:
                yield f"{stat.key}: no shard of the manifest; move it away before training"


def _size_fault(store: ArtifactStore, key: str, n_bytes: int) -> str:
    there = store.head(key)
    if there is None:
        return "it is missing"
    return "" if there.n_bytes == n_bytes else f"it has {there.n_bytes} bytes instead of {n_bytes}"


def _hash_fault(store: ArtifactStore, key: str, sha256: str, *, n_rows: int | None = None) -> str:
    """Read an object once; with `n_rows` also count its rows as a Parquet file."""
    with tempfile.TemporaryFile() as copy:
        with store.open(key) as stream:
            meter = Meter(stream)
            while block := meter.read(_BLOCK):
                if n_rows is not None:
                    copy.write(block)
        if meter.sha256 != sha256:
            return "its sha256 is not the manifest's"
        if n_rows is None:
            return ""
        try:
            there = pyarrow.parquet.ParquetFile(copy).metadata.num_rows
        except (pyarrow.lib.ArrowException, OSError):
            return "it is no Parquet file"
    return "" if there == n_rows else f"it has {there} rows instead of {n_rows}"


def _chosen(key: str, share: float) -> bool:
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16) < share * 16**12


def _note(statuses: Counter[str], row: bytes) -> None:
    try:
        statuses[msgspec.json.decode(row, type=_RowStatus).status] += 1
    except (msgspec.DecodeError, UnicodeDecodeError):
        statuses["unreadable"] += 1


def _ends_of(footer: PartFooter) -> Counter[str]:
    return Counter({status: getattr(footer, f"n_{status}") for status in _STATUSES})
