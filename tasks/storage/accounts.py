"""The accounts of a manifest: plan against parts, retries against what they replace, sums.

Enters: a manifest, and a store for the lists of its retries. Leaves: problems, each with its place.
It exists because a dataset may be whole in bytes and wrong in numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tasks.errors import CorruptPart
from tasks.storage.fault import Problem
from tasks.storage.layout import manifest_key
from tasks.storage.record import Manifest, PartReceipt, Superseded
from tasks.storage.request import hash_json
from tasks.storage.retry import Standing, hash_retries, read_retries, sum_standing
from tasks.storage.store import ArtifactStore

STATUSES = ("completed", "truncated", "partial", "failed")
EARLIER = "take an earlier revision"
_COPY = "restore it from a copy"


def check_retries(store: ArtifactStore, manifest: Manifest) -> Iterator[Problem]:
    """Hold the retries' lists against their hashes, and what they replace against the manifest."""
    name = manifest_key(manifest.revision)
    there = hash_retries(store, len(manifest.retry_lists))
    for key, sha256 in manifest.retry_lists.items():
        if there.get(key) != sha256:
            yield Problem(key, "it is missing or not the manifest's", _COPY)
            return
    try:
        lists = tuple(read_retries(store, manifest.plan_sha)[: len(manifest.retry_lists)])
        replaced = Standing(manifest.parts, manifest.retries, lists).locate_superseded()
    except CorruptPart as error:
        place = error.where.removeprefix(f"{store.uri}/")
        yield Problem(place, error.what.rstrip("."), _COPY)
        return
    except KeyError:
        yield _misstated(name, "a part of a retry or its chunk is not listed")
        return
    for key in sorted({*replaced, *manifest.superseded}):
        n_listed = len(replaced.get(key, ()))
        n_told = manifest.superseded.get(key, Superseded()).n_rows
        if n_listed != n_told:
            what = f"{n_told} rows of {key} no longer count, and the retries replace {n_listed}"
            yield _misstated(name, what)


def list_parts(manifest: Manifest) -> tuple[PartReceipt, ...]:
    """List every part that the manifest names, those of retries last."""
    return (*manifest.parts, *manifest.retries)


def check_accounts(manifest: Manifest) -> Iterator[Problem]:
    """Hold the plan against the parts, and the sums of the parts against what is told."""
    name = manifest_key(manifest.revision)
    if hash_json(manifest.plan) != manifest.plan_sha:
        yield _misstated(name, f"the plan's hash is not {manifest.plan_sha}")
    asked = {
        chunk["id"]: chunk["n_prompts"] * manifest.plan.get("n_samples", 1)
        for chunk in manifest.plan.get("chunks", ())
    }
    got = Counter[int]()
    for part in manifest.parts:
        got[part.header.chunk_id] += part.footer.n_rows
    totals = sum_standing(list_parts(manifest), manifest.superseded)
    totals["n_conversations"] = totals["n_rows"]
    for part in list_parts(manifest):
        if part.header.plan_sha != manifest.plan_sha:
            yield Problem(part.key, "it answers another plan", EARLIER, is_object=False)
    for chunk_id in sorted({*asked, *got}):
        if asked.get(chunk_id) != got.get(chunk_id):
            n_asked, n_got = asked.get(chunk_id, 0), got.get(chunk_id, 0)
            what = f"the plan asks for {n_asked} conversations and the parts hold {n_got}"
            remedy = "run the same request again"
            yield Problem(f"chunk {chunk_id}", what, remedy, is_object=False)
    n_base = 0 if manifest.base is None else int(manifest.base["n_rows"])
    totals["n_dataset_rows"] = n_base + sum(shard.n_rows for shard in manifest.shards)
    for field in ("n_conversations", *(f"n_{status}" for status in STATUSES), "n_dataset_rows"):
        counted = manifest.counts.get(field)
        if counted != totals[field]:
            what = f"{field} is {counted} and its objects hold {totals[field]}"
            yield _misstated(name, what)


def _misstated(place: str, what: str) -> Problem:
    return Problem(place, what, EARLIER, is_object=False)
