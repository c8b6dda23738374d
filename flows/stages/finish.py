"""The end of the road: merge, report and, last of all, the manifest.

Enters: a Run, its Plan, the receipts of parts and samples. Leaves: a summary for whoever started
the run. A revision of the dataset is written once; when nothing has changed since, none is added.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from flows.pages.report import is_simulated, now
from flows.stages.opened import Run
from flows.stages.show import publish_report_page
from tasks.completions.survey import count_superseded
from tasks.errors import AccountingError, KeyTaken
from tasks.prompts.record import Plan
from tasks.report.balance import balance
from tasks.storage import layout
from tasks.storage.fault import find_damaged_shard
from tasks.storage.inventory import find_changed, take_inventory
from tasks.storage.manifest import next_revision, read_latest, write_manifest
from tasks.storage.record import Manifest, Superseded
from tasks.storage.retry import Standing, hash_retries, sum_standing
from tasks.tokens.record import RETOKENIZED, MergeReceipt, SamplesReceipt
from tasks.tokens.task import merge_task

# What else of the configuration the report shows; the request, tokens and merge stand apart.
_SETTINGS = ("name", "serving", "gates", "generation")
# Leftovers of runs that died between merge and manifest take a revision each.
_MAX_LEFTOVERS = 100
_OF_PARTS = (
    "n_completed",
    "n_truncated",
    "n_partial",
    "n_failed",
    "n_generations",
    "n_output_tokens",
)


async def finish_run(
    run: Run, plan: Plan, standing: Standing, samples: Sequence[SamplesReceipt]
) -> dict[str, Any]:
    """Merge, report, and write the manifest; or find that the newest one says it all already.

    Raises:
        AccountingError: Records in are not records out.
        BaseDatasetError: The base dataset cannot be merged.
    """
    store = run.store
    latest = await store.run(read_latest, store)
    if latest is not None and _is_of(latest, run, plan, standing, samples):
        damaged = await store.run(find_damaged_shard, store, latest.shards)
        if damaged is None:
            kept = await _renew(run, latest)
            if kept is not None:
                return summarise(run, kept)
        else:
            run.narrator.note(f"{damaged} is missing or damaged: a new revision is merged")
    gates = run.config.gates
    superseded = await store.run(count_superseded, store, plan, standing, gates)
    revision, merged = await _merge(run, plan, standing, samples)
    counts = add_up(plan, standing, superseded, samples, merged)
    told = Manifest(
        revision=revision,
        created_at=now(),
        plan_sha=plan.sha,
        plan=plan.model_dump(mode="json"),
        parts=standing.parts,
        supersedes=await _list_replaced(run, standing),
        retries=standing.retries,
        retry_lists=await store.run(hash_retries, store, len(standing.lists)),
        superseded=superseded,
        samples=tuple(receipt.model_dump(mode="json") for receipt in samples),
        shards=merged.shards,
        counts=counts,
        composition={
            "before": merged.base_composition.model_dump(mode="json"),
            "after": merged.composition.model_dump(mode="json"),
        },
        report_key=None,
        request=run.request.model_dump(mode="json"),
        tokens=run.config.tokens.model_dump(mode="json"),
        merge=run.config.merge.model_dump(mode="json"),
        base=merged.base.model_dump(mode="json") if merged.base is not None else None,
        settings=run.config.model_dump(mode="json", include=set(_SETTINGS)),
        versions={"draftmill": version("draftmill")},
    )
    report_key = await publish_report_page(run, told)
    objects = await store.run(take_inventory, store, [report_key])
    manifest = told.model_copy(update={"report_key": report_key, "objects": objects})
    try:
        await store.run(write_manifest, store, manifest)
    except KeyTaken:
        # Another run of the same request was quicker; its manifest differs in the time at most.
        twin = await store.run(read_latest, store)
        if twin is None or not _is_of(twin, run, plan, standing, samples):
            raise
        return summarise(run, twin)
    return summarise(run, manifest)


async def _renew(run: Run, latest: Manifest) -> Manifest | None:
    """Take the newest manifest, or write it again where another object than data has changed.

    Returns:
        The manifest that counts; None where its report is gone, which a merge makes anew.
    """
    store = run.store
    changed = await store.run(find_changed, store, latest.objects)
    revision = await store.run(next_revision, store)
    if changed is None and revision == latest.revision + 1:
        run.narrator.stage("merge", "the newest manifest says it all already")
        return latest
    if changed is not None and changed == latest.report_key:
        return None
    why = f"{changed} is missing or changed" if changed else "a damaged manifest stands above it"
    run.narrator.note(f"{why}: manifest r{latest.revision:04d} is written again")
    renewed = latest.model_copy(
        update={
            "revision": revision,
            "created_at": now(),
            "objects": await store.run(take_inventory, store, [latest.report_key]),
        }
    )
    await store.run(write_manifest, store, renewed)
    return renewed


async def _merge(
    run: Run, plan: Plan, standing: Standing, samples: Sequence[SamplesReceipt]
) -> tuple[int, MergeReceipt]:
    """Merge into the first revision that is free, or that holds these very shards."""
    left_out = {
        key: sorted(f"{prompt_id}#s{sample}" for prompt_id, sample in conversations)
        for key, conversations in standing.locate_superseded().items()
    }
    first = await run.store.run(next_revision, run.store)
    for revision in range(first, first + _MAX_LEFTOVERS):
        run.narrator.stage("merge", f"dataset r{revision:04d}")
        task = run.persisted(merge_task)
        try:
            merged = await task(plan.sha, samples, revision, left_out)
            if await run.store.run(find_damaged_shard, run.store, merged.shards) is not None:
                # The store decides, not the cache.
                anew = task.with_options(refresh_cache=True)
                merged = await anew(plan.sha, samples, revision, left_out)
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
    standing: Standing,
    superseded: Mapping[str, Superseded],
    samples: Sequence[SamplesReceipt],
    merged: MergeReceipt,
) -> dict[str, int]:
    """Count every record from row to sample, and hold the sums against each other.

    What a retry stands in for is not counted: neither the outcome, nor its samples.

    Raises:
        AccountingError: Something was lost or doubled.
    """
    counts: Counter[str] = Counter()
    for receipt in plan.extracted:
        counts["n_source_rows"] += receipt.n_rows
        counts["n_rejected"] += receipt.n_rejected
        counts["n_not_sampled"] += receipt.n_not_sampled
    counts["n_not_sampled"] += plan.n_outside_mix
    counts["n_duplicates"] = plan.n_duplicates
    counts["n_prompts"] = plan.n_prompts
    sums = sum_standing(standing.all_parts, superseded)
    counts["n_conversations"] = sums["n_rows"]
    for name in _OF_PARTS:
        counts[name] = sums[name]
    n_gone = sum(gone.n_generations for gone in superseded.values())
    counts["n_retried"] = sum(gone.n_rows for gone in superseded.values())
    counts["n_samples"] = sum(made.n_samples for made in samples) - merged.counts["n_superseded"]
    # Of what is superseded, the merge left the samples out; the rest had been dropped before.
    n_dropped = sum(sum(made.n_dropped.values()) for made in samples)
    counts["n_dropped"] = n_dropped - (n_gone - merged.counts["n_superseded"])
    counts["n_supervised_tokens"] = merged.counts["n_new_supervised_tokens"]
    counts["n_base_rows"] = merged.counts["n_base"]
    counts["n_base_prompts"] = merged.counts["n_base_prompts"]
    counts["n_dropped_prompts"] = merged.counts["n_dropped_prompts"]
    counts["n_base_refused"] = merged.counts["n_base_refused"]
    n_retokenized = sum(made.token_sources.get(RETOKENIZED, 0) for made in samples)
    counts["n_retokenized"] = n_retokenized - merged.counts.get("n_superseded_retokenized", 0)
    # Which samples these are is in no row, so that a superseded one is counted still.
    counts["n_prompts_cut"] = sum(made.n_cut for made in samples)
    counts["n_dataset_rows"] = merged.counts["n_rows"]
    wrong = [
        f"{sums.name}: {sums.left} is not {sums.right}"
        for sums in balance(counts, plan.n_prompts * plan.n_samples)
        if not sums.holds
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
    # A manifest that was written again names the shards of an earlier revision.
    folders = {shard.key.rpartition("/")[0] for shard in manifest.shards}
    folder = folders.pop() if folders else f"dataset/r{manifest.revision:04d}"
    return {
        "name": run.config.name,
        "simulated": is_simulated(manifest.parts),
        "uri": uri,
        "dataset": f"{uri}/{folder}/",
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
    standing: Standing,
    samples: Sequence[SamplesReceipt],
) -> bool:
    made = tuple(receipt.model_dump(mode="json") for receipt in samples)
    merge = run.config.merge.model_dump(mode="json")
    there = (manifest.plan_sha, manifest.parts, manifest.retries, manifest.samples, manifest.merge)
    return there == (plan.sha, standing.parts, standing.retries, made, merge)


async def _list_replaced(run: Run, standing: Standing) -> dict[str, str]:
    """Name the damaged parts that a later revision stands in for."""
    chosen = {(part.header.retry, part.header.chunk_id): part.key for part in standing.all_parts}
    stats = await asyncio.to_thread(lambda: list(run.store.list("data/")))
    places = {stat.key: layout.parse_part_key(stat.key) for stat in stats}
    return {
        key: chosen[place[:2]]
        for key, place in places.items()
        if place is not None and place[:2] in chosen and chosen[place[:2]] != key
    }
