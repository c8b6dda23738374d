"""A run of a few conversations the whole road, without Prefect: from prompts to a manifest.

Enters: a folder, a store, the urls of simulated servers. Leaves: what a stranger may compare: the
shards' hashes, the rows without what differs from run to run, and the verdict of verification.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk, plan_folder
from tasks.completions.sweep import sweep_plan
from tasks.errors import KeyTaken
from tasks.prompts.record import Prompt
from tasks.storage.manifest import next_revision, read_latest, write_manifest
from tasks.storage.part import iter_rows
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore
from tasks.storage.verify import verify_dataset
from tasks.tokens.assemble import assemble_part
from tasks.tokens.config import MergeConfig, TokensConfig
from tasks.tokens.merge import merge_dataset
from tests.support.generation import (
    GenerationRun,
    build_run,
    invent_prompts,
    load_template,
    make_endpoint,
    make_prompt,
)

N_SINGLE = 4
# What differs between two runs that answered the same.
_OF_THE_RUN = ("endpoint", "attempts", "latency_seconds", "ended_at", "retried")


def invent_conversations() -> list[Prompt]:
    """Invent a few questions, and one conversation of three turns."""
    template = load_template()
    turns = ["What is tea?", "A drink.", "And coffee?", "Another.", "And milk?"]
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    return [*invent_prompts(template, N_SINGLE), make_prompt(template, messages, row=N_SINGLE)]


def plan_road(folder: Path, store: ArtifactStore | None = None) -> GenerationRun:
    """Plan the conversations as one chunk; the same folder and store give the same plan."""
    config = GenerationConfig(backoff_seconds=0.05, return_after_seconds=0.1, fsync_every=4)
    prompts = invent_conversations()
    return build_run(folder, load_template(), [prompts], generation=config, store=store)


async def travel(run: GenerationRun, urls: Sequence[str]) -> dict[str, Any]:
    """Generate, assemble, merge, write the manifest, verify; what exists is done."""
    (chunk,) = run.plan.chunks
    async with Dispatcher([make_endpoint(url) for url in urls], run.generation) as dispatcher:
        part = await generate_chunk(run.context(dispatcher), chunk)
    samples = assemble_part(run.store, run.plan, chunk, part, run.template, TokensConfig())
    journals = plan_folder(run.spool_dir, run.plan.sha)
    sweep_plan(journals)
    latest = read_latest(run.store)
    if latest is None:
        latest = _finish(run, part, samples)
    return {
        "rows": digest_rows(run.store, part.key),
        "shards": [shard.sha256 for shard in latest.shards],
        "revision": latest.revision,
        "problems": verify_dataset(run.store).problems,
        # Scratch folders beside the journals are swept by whoever opens the next one.
        "left": sorted(str(path) for path in journals.rglob("*")),
    }


def digest_rows(store: ArtifactStore, key: str) -> str:
    """Hash a part's rows, but for what differs between two runs that answered the same."""
    digest = hashlib.sha256()
    for row in iter_rows(store, key):
        outcome = orjson.loads(row)
        del outcome["attempt"]
        for completion in outcome["completions"]:
            for name in _OF_THE_RUN:
                del completion[name]
        digest.update(orjson.dumps(outcome, option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


def _finish(run: GenerationRun, part: Any, samples: Any) -> Manifest:
    revision = next_revision(run.store)
    merged = merge_dataset(
        run.store,
        run.plan,
        [samples],
        None,
        MergeConfig(),
        revision,
        template=run.template,
        scratch_dir=run.spool_dir,
    )
    footer = part.footer
    statuses = ("n_completed", "n_truncated", "n_partial", "n_failed")
    manifest = Manifest(
        revision=revision,
        created_at="2026-01-01T00:00:00+00:00",
        plan_sha=run.plan.sha,
        plan=run.plan.model_dump(mode="json"),
        parts=(part,),
        supersedes={},
        samples=(samples.model_dump(mode="json"),),
        shards=merged.shards,
        counts={
            "n_conversations": footer.n_rows,
            **{name: getattr(footer, name) for name in statuses},
            "n_dataset_rows": merged.counts["n_rows"],
        },
        composition={},
        report_key=None,
        versions={},
    )
    try:
        write_manifest(run.store, manifest)
    except KeyTaken:
        there = read_latest(run.store)
        if there is None:
            raise
        return there
    return manifest
