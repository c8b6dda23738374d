"""Verification: what the store holds against what the manifest says, object by object.

Enters: a store. Leaves: a Verdict that names each fault with what to do. It exists so that a
dataset can be trusted, or mended, years after the run and without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from tasks.storage.accounts import check_accounts, check_retries, list_parts
from tasks.storage.contents import check_objects, check_parts, check_samples, check_shards
from tasks.storage.fault import Problem
from tasks.storage.layout import manifest_key
from tasks.storage.manifest import list_revisions, read_latest, read_revision
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore

_INPUTS = ("extracted/", "prompts/")


class Verdict(BaseModel):
    """What verification found; `ok` means no problem at all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ok: bool
    n_objects: int = Field(description="Objects that the manifest names.")
    problems: tuple[str, ...] = Field(description="Each names the object and what to do.")
    damaged: tuple[str, ...] = Field(description="Keys that are missing or not what they were.")
    notes: tuple[str, ...] = Field(
        default=(), description="Damage to what no longer counts: no problem of this dataset."
    )
    counts: dict[str, int] = Field(description="What was counted on the way.")


def verify_dataset(store: ArtifactStore, *, read_data_share: float = 1.0) -> Verdict:
    """Hold sizes, hashes, rows and accounting against the latest manifest.

    Memory stays flat whatever the size of the objects: each is streamed.

    Args:
        store: The run's store.
        read_data_share: Share of the objects that are read in full, chosen by their keys and so
            the same at each call; of the others only the size, and a part's ends, are checked.
    """
    manifest = read_latest(store)
    counts: Counter[str] = Counter()
    problems = list(_check_manifests(store, manifest))
    if manifest is not None:
        problems += _check(store, manifest, read_data_share, counts)
    verdict = _judge(manifest, problems, counts)
    notes = tuple(_check_older(store, manifest)) if manifest is not None else ()
    return verdict.model_copy(update={"notes": notes})


def verify_manifest(
    store: ArtifactStore, manifest: Manifest, *, read_data_share: float = 1.0
) -> Verdict:
    """Hold sizes, hashes, rows and accounting against a manifest that is about to be written."""
    counts: Counter[str] = Counter()
    return _judge(manifest, _check(store, manifest, read_data_share, counts), counts)


def _check(
    store: ArtifactStore, manifest: Manifest, share: float, counts: Counter[str]
) -> list[Problem]:
    return [
        *check_parts(store, list_parts(manifest), share, counts),
        *check_samples(store, manifest, share, counts),
        *check_shards(store, manifest.shards, share, counts),
        *check_objects(store, manifest.objects, share, counts),
        *check_retries(store, manifest),
        *check_accounts(manifest),
        *_find_extra(store, manifest),
    ]


def _judge(manifest: Manifest | None, problems: list[Problem], counts: Counter[str]) -> Verdict:
    return Verdict(
        ok=not problems,
        n_objects=0 if manifest is None else _count_objects(manifest),
        problems=tuple(map(str, problems)),
        damaged=tuple(sorted({problem.place for problem in problems if problem.is_object})),
        counts=dict(counts),
    )


def _check_manifests(store: ArtifactStore, latest: Manifest | None) -> Iterator[Problem]:
    """Name the manifests that stand above the latest valid one: they are damaged, or swapped."""
    newest = -1 if latest is None else latest.revision
    for revision in sorted(list_revisions(store)):
        if revision > newest:
            remedy = (
                f"{manifest_key(newest)} counts until then; run the same request again (or "
                "`draftmill repair`), and the next revision will"
                if latest is not None
                else "run the same request again: the next revision will count"
            )
            yield Problem(manifest_key(revision), "the manifest is damaged", remedy)
    if latest is None:
        what = "there is no valid manifest: the run is not finished"
        yield Problem(store.uri, what, "run it again", is_object=False)


def _check_older(store: ArtifactStore, latest: Manifest) -> Iterator[str]:
    """Name the damaged manifests below the latest one.

    None of its own data hangs on them; a run that was begun upon that revision cannot go on.
    """
    for revision in sorted(list_revisions(store)):
        if revision < latest.revision and read_revision(store, revision) is None:
            yield (
                f"{manifest_key(revision)}: an older manifest is damaged: restore it from a copy "
                "where a run builds upon that revision, else leave it"
            )


def _count_objects(manifest: Manifest) -> int:
    kinds = (list_parts(manifest), manifest.retry_lists, manifest.samples, manifest.shards)
    return sum(map(len, kinds)) + len(manifest.objects)


def _find_extra(store: ArtifactStore, manifest: Manifest) -> Iterator[Problem]:
    """Name what a reader of the prefix could take for a part of the dataset, and is none."""
    known = {part.key for part in list_parts(manifest)} | set(manifest.supersedes)
    for stat in store.list("data/"):
        if stat.key not in known:
            what = "the manifest neither lists nor supersedes it"
            remedy = "if a run is under way let it end, else move the object away"
            yield Problem(stat.key, what, remedy, is_object=False)
    shards = {shard.key for shard in manifest.shards}
    for folder in sorted({key.rpartition("/")[0] for key in shards}):
        for stat in store.list(f"{folder}/"):
            if stat.key not in shards:
                remedy = "move it away before training"
                yield Problem(stat.key, "no shard of the manifest", remedy, is_object=False)
    inputs = {entry.key for entry in manifest.objects if entry.key.startswith(_INPUTS)}
    for prefix in _INPUTS if inputs else ():
        for stat in store.list(prefix):
            if stat.key not in inputs:
                what, remedy = "the manifest does not know it", "move it away"
                yield Problem(stat.key, what, remedy, is_object=False)
