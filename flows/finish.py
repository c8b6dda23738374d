"""The end of the road: merge, report and, last of all, the manifest.

Enters: a Run, its Plan, the receipts of parts and samples. Leaves: a summary for whoever started
the run. A revision of the dataset is written once; when nothing has changed since, none is added.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from flows.opened import Run
from flows.show import is_simulated, now, publish_report_page
from tasks.errors import AccountingError, KeyTaken
from tasks.prompts.record import Plan
from tasks.storage import layout
from tasks.storage.manifest import next_revision, read_latest, write_manifest
from tasks.storage.record import Manifest, PartReceipt
from tasks.storage.verify import find_damaged_shard
from tasks.tokens.record import MergeReceipt, SamplesReceipt
from tasks.tokens.task import merge_task

# Leftovers of runs that died between merge and manifest take a revision each.
_MAX_LEFTOVERS = 100


async def finish_run(
    run: Run, plan: Plan, parts: Sequence[PartReceipt], samples: Sequence[SamplesReceipt]
) -> dict[str, Any]:
    """Merge, report, and write the manifest; or find that the newest one says it all already.

    Raises:
        AccountingError: Records in are not records out.
        BaseDatasetError: The base dataset cannot be merged.
    """
    store = run.store
    latest = await store.run(read_latest, store)
    if latest is not None and _is_of(latest, run, plan, parts, samples):
        damaged = await store.run(find_damaged_shard, store, latest.shards)
        if damaged is None:
            run.narrator.stage("merge", "the newest manifest says it all already")
            return summarise(run, latest)
        run.narrator.note(f"{damaged} is missing or damaged: a new revision is merged")
    revision, merged = await _merge(run, plan, samples)
    counts = add_up(plan, parts, samples, merged)
    report_key = await publish_report_page(
        run, plan, parts, samples, merged, revision=revision, counts=counts
    )
    manifest = Manifest(
        revision=revision,
        created_at=now(),
        plan_sha=plan.sha,
        plan=plan.model_dump(mode="json"),
        parts=tuple(parts),
        supersedes=await _list_superseded(run, parts),
        samples=tuple(receipt.model_dump(mode="json") for receipt in samples),
        shards=merged.shards,
        counts=counts,
        composition={
            "before": merged.base_composition.model_dump(mode="json"),
            "after": merged.composition.model_dump(mode="json"),
        },
        report_key=report_key,
        merge=run.config.merge.model_dump(mode="json"),
        versions={"draftmill": version("draftmill")},
    )
    try:
        await store.run(write_manifest, store, manifest)
    except KeyTaken:
        # Another run of the same request was quicker; its manifest differs in the time at most.
        twin = await store.run(read_latest, store)
        if twin is None or not _is_of(twin, run, plan, parts, samples):
            raise
        return summarise(run, twin)
    return summarise(run, manifest)


async def _merge(
    run: Run, plan: Plan, samples: Sequence[SamplesReceipt]
) -> tuple[int, MergeReceipt]:
    """Merge into the first revision that is free, or that holds these very shards."""
    first = await run.store.run(next_revision, run.store)
    for revision in range(first, first + _MAX_LEFTOVERS):
        run.narrator.stage("merge", f"dataset r{revision:04d}")
        task = run.persisted(merge_task)
        try:
            merged = await task(plan.sha, samples, revision)
            if await run.store.run(find_damaged_shard, run.store, merged.shards) is not None:
                # The store decides, not the cache.
                merged = await task.with_options(refresh_cache=True)(plan.sha, samples, revision)
            return revision, merged
        except KeyTaken:
            run.narrator.note(
                f"r{revision:04d} holds another merge without a manifest: passed over"
            )
    raise KeyTaken(
        f"{_MAX_LEFTOVERS} revisions stand there without a manifest",
        where=f"{run.store.uri}/dataset/",
        remedy="Choose another store.uri.",
    )


def add_up(
    plan: Plan,
    parts: Sequence[PartReceipt],
    samples: Sequence[SamplesReceipt],
    merged: MergeReceipt,
) -> dict[str, int]:
    """Count every record from row to sample, and hold the sums against each other.

    Raises:
        AccountingError: Something was lost or doubled.
    """
    counts: Counter[str] = Counter()
    for receipt in plan.extracted:
        counts["n_source_rows"] += receipt.n_rows
        counts["n_rejected"] += receipt.n_rejected
        counts["n_not_sampled"] += receipt.n_not_sampled
    counts["n_duplicates"] = plan.n_duplicates
    counts["n_prompts"] = plan.n_prompts
    for part in parts:
        footer = part.footer
        counts["n_conversations"] += footer.n_rows
        counts["n_completed"] += footer.n_completed
        counts["n_truncated"] += footer.n_truncated
        counts["n_partial"] += footer.n_partial
        counts["n_failed"] += footer.n_failed
        counts["n_generations"] += footer.n_generations
        counts["n_output_tokens"] += footer.n_output_tokens
    for made in samples:
        counts["n_samples"] += made.n_samples
        counts["n_dropped"] += sum(made.n_dropped.values())
        counts["n_supervised_tokens"] += made.n_supervised_tokens
    counts["n_base_rows"] = merged.counts["n_base"]
    counts["n_dataset_rows"] = merged.counts["n_rows"]
    identities = {
        "rows read = prompts + rejected + not sampled + duplicates": (
            counts["n_source_rows"],
            counts["n_prompts"]
            + counts["n_rejected"]
            + counts["n_not_sampled"]
            + counts["n_duplicates"],
        ),
        "conversations = prompts x samples": (
            counts["n_conversations"],
            plan.n_prompts * plan.n_samples,
        ),
        "conversations = completed + truncated + partial + failed": (
            counts["n_conversations"],
            counts["n_completed"]
            + counts["n_truncated"]
            + counts["n_partial"]
            + counts["n_failed"],
        ),
        "generations = samples + dropped": (
            counts["n_generations"],
            counts["n_samples"] + counts["n_dropped"],
        ),
        "dataset rows = base rows + samples": (
            counts["n_dataset_rows"],
            counts["n_base_rows"] + counts["n_samples"],
        ),
    }
    wrong = [
        f"{name}: {left} is not {right}"
        for name, (left, right) in identities.items()
        if left != right
    ]
    if wrong:
        raise AccountingError(
            "; ".join(wrong),
            remedy="No manifest was written. Keep the store as it is and run again.",
        )
    return dict(counts)


def summarise(run: Run, manifest: Manifest) -> dict[str, Any]:
    """Tell where everything is, with the counts."""
    uri = run.store.uri
    return {
        "name": run.config.name,
        "simulated": is_simulated(manifest.parts),
        "uri": uri,
        "dataset": f"{uri}/dataset/r{manifest.revision:04d}/",
        "manifest": f"{uri}/{layout.manifest_key(manifest.revision)}",
        "report": f"{uri}/{manifest.report_key}",
        "canary": f"{uri}/{layout.canary_key()}",
        "counts": manifest.counts,
        "composition": manifest.composition,
    }


def _is_of(
    manifest: Manifest,
    run: Run,
    plan: Plan,
    parts: Sequence[PartReceipt],
    samples: Sequence[SamplesReceipt],
) -> bool:
    made = tuple(receipt.model_dump(mode="json") for receipt in samples)
    merge = run.config.merge.model_dump(mode="json")
    there = (manifest.plan_sha, manifest.parts, manifest.samples, manifest.merge)
    return there == (plan.sha, tuple(parts), made, merge)


async def _list_superseded(run: Run, parts: Sequence[PartReceipt]) -> dict[str, str]:
    """Name the damaged parts that a later revision stands in for."""
    chosen = {part.header.chunk_id: part.key for part in parts}
    stats = await asyncio.to_thread(lambda: list(run.store.list("data/")))
    places = {stat.key: layout.parse_data_key(stat.key) for stat in stats}
    return {
        key: chosen[place[0]]
        for key, place in places.items()
        if place is not None and place[0] in chosen and chosen[place[0]] != key
    }
