"""Parts, samples and shards held against what the manifest says of each.

Enters: a store and the receipts of a manifest. Leaves: problems, each naming its object; counts of
what was looked at. It exists apart from verify.py as the part that reads: every object streamed,
and at most one of them at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import CorruptPart
from tasks.storage.accounts import EARLIER, STATUSES, list_parts
from tasks.storage.fault import Problem, find_hash_fault, find_size_fault, is_chosen
from tasks.storage.layout import manifest_key
from tasks.storage.part import peek, read_receipt
from tasks.storage.record import Manifest, ObjectReceipt, PartFooter, PartReceipt, ShardReceipt
from tasks.storage.store import ArtifactStore

_AGAIN = "run the same request again (or `draftmill repair`)"
_REGENERATE = f"{_AGAIN}: a new revision of the part will replace it"
_REMAKE = f"{_AGAIN}: it is made anew from the data parts"
_RESTORE = (
    "the samples are whole without it; if it is there, move it away, then `draftmill repair` with "
    "the configuration makes it again"
)


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


def check_parts(
    store: ArtifactStore, parts: Iterable[PartReceipt], share: float, counts: Counter[str]
) -> Iterator[Problem]:
    """Hold each part's bytes, rows and ends against its receipt; `share` of them are read whole."""
    for part in parts:
        counts["n_parts"] += 1
        counts["n_rows"] += part.footer.n_rows
        fault = find_size_fault(store, part.key, part.n_bytes)
        if fault:
            yield Problem(part.key, fault, _REGENERATE)
            continue
        try:
            if not is_chosen(part.key, share):
                if peek(store, part.key) != (part.header, part.footer):
                    yield Problem(part.key, "header or footer is not the manifest's", _REGENERATE)
                continue
            counts["n_read_in_full"] += 1
            statuses: Counter[str] = Counter()
            receipt = read_receipt(store, part.key, partial(_note, statuses))
        except CorruptPart as error:
            yield Problem(part.key, error.what.rstrip("."), _REGENERATE)
            continue
        if receipt != part:
            yield Problem(part.key, "it is another part than the manifest's", _REGENERATE)
        elif statuses != _ends_of(part.footer):
            yield Problem(part.key, "its rows end otherwise than its footer says", _REGENERATE)


def check_samples(
    store: ArtifactStore, manifest: Manifest, share: float, counts: Counter[str]
) -> Iterator[Problem]:
    """Hold the samples against their receipts, and these against the parts that they are of."""
    try:
        entries = [_SamplesEntry.model_validate(sample) for sample in manifest.samples]
    except ValidationError as error:
        what = f"samples has {error.error_count()} faults"
        yield Problem(manifest_key(manifest.revision), what, EARLIER, is_object=False)
        return
    made_from = {(entry.data_key, entry.data_sha256) for entry in entries}
    for part in list_parts(manifest):
        if (part.key, part.sha256) not in made_from:
            yield Problem(part.key, "no samples were made from it", _REMAKE, is_object=False)
    generated = {part.key: part.footer.n_generations for part in list_parts(manifest)}
    for entry in entries:
        counts["n_sample_parts"] += 1
        counts["n_samples"] += entry.n_samples
        fault = find_size_fault(store, entry.key, entry.n_bytes)
        if not fault and is_chosen(entry.key, share):
            counts["n_read_in_full"] += 1
            fault = find_hash_fault(store, entry.key, entry.sha256)
        if not fault and entry.n_generations != entry.n_samples + sum(entry.n_dropped.values()):
            fault = "generations are not samples + dropped ones"
        if not fault and entry.n_generations != generated.get(entry.data_key):
            fault = f"it was made from {entry.n_generations} generations, not those of its part"
        if fault:
            yield Problem(entry.key, fault, _REMAKE)


def check_shards(
    store: ArtifactStore, shards: Iterable[ShardReceipt], share: float, counts: Counter[str]
) -> Iterator[Problem]:
    """Hold the files of the dataset against their receipts, rows included."""
    for shard in shards:
        counts["n_shards"] += 1
        counts["n_shard_rows"] += shard.n_rows
        fault = find_size_fault(store, shard.key, shard.n_bytes)
        if not fault and is_chosen(shard.key, share):
            counts["n_read_in_full"] += 1
            fault = find_hash_fault(store, shard.key, shard.sha256, n_rows=shard.n_rows)
        if fault:
            yield Problem(shard.key, fault, _REMAKE)


def check_objects(
    store: ArtifactStore, objects: Iterable[ObjectReceipt], share: float, counts: Counter[str]
) -> Iterator[Problem]:
    """Hold the request, the plan, what was extracted, prompts and pages against the manifest."""
    for entry in objects:
        counts["n_other_objects"] += 1
        fault = find_size_fault(store, entry.key, entry.n_bytes)
        if not fault and is_chosen(entry.key, share):
            counts["n_read_in_full"] += 1
            fault = find_hash_fault(store, entry.key, entry.sha256)
        if fault:
            yield Problem(entry.key, fault, _RESTORE)


def _note(statuses: Counter[str], row: bytes) -> None:
    try:
        statuses[msgspec.json.decode(row, type=_RowStatus).status] += 1
    except (msgspec.DecodeError, UnicodeDecodeError):
        statuses["unreadable"] += 1


def _ends_of(footer: PartFooter) -> Counter[str]:
    return Counter({status: getattr(footer, f"n_{status}") for status in STATUSES})
