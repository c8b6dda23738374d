"""The dry run: extraction and planning in a scratch folder, and the keys that a run would write.

Enters: an ExpansionConfig. Leaves: counts and keys. The run's own store is only listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import humanize
from rich.console import Group, RenderableType
from rich.markup import escape

from flows.command_line.rehearse import rehearse
from flows.command_line.summary import show_place
from flows.config import ExpansionConfig
from flows.process.speak import table
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import Plan
from tasks.storage import layout


def preview(config: ExpansionConfig) -> dict[str, Any]:
    """Extract and plan without writing to the store.

    Raises:
        UserError: A source, the model or the store cannot be had.
    """
    with rehearse(config) as rehearsal:
        plan = rehearsal.plan
        n_prompt_tokens = sum(
            len(prompt.prompt_token_ids)
            for chunk in plan.chunks
            for prompt in read_chunk(rehearsal.scratch, chunk)
        )
    there = (
        "a run is there; the same request resumes it"
        if rehearsal.is_begun
        else "empty prefix, a run would begin here"
    )
    return {
        "uri": config.store.uri,
        "store": there,
        "plan_sha": plan.sha,
        "sources": [receipt.model_dump(mode="json") for receipt in plan.extracted],
        "n_duplicates": plan.n_duplicates,
        "n_near_duplicates": plan.n_near_duplicates,
        "n_outside_mix": plan.n_outside_mix,
        "n_prompts": plan.n_prompts,
        "n_conversations": plan.n_prompts * plan.n_samples,
        "n_chunks": len(plan.chunks),
        "n_prompt_tokens": n_prompt_tokens,
        "max_output_tokens": plan.n_prompts * plan.n_samples * plan.max_tokens,
        "keys": list(_list_keys(plan)),
    }


def describe_preview(found: dict[str, Any]) -> RenderableType:
    """Lay the plan out."""
    head = ("source", "rows", "prompts", "rejected", "not sampled", "why rejected")
    rows = [
        (
            source["source"],
            f"{source['n_rows']:,}",
            f"{source['n_prompts']:,}",
            f"{source['n_rejected']:,}",
            f"{source['n_not_sampled']:,}",
            ", ".join(f"{kind} {n:,}" for kind, n in sorted(source["rejections"].items())),
        )
        for source in found["sources"]
    ]
    keys = found["keys"]
    return Group(
        table(head, rows),
        "",
        f"{found['n_prompts']:,} prompts after {found['n_duplicates']:,} duplicates across sources"
        f" ({found['n_near_duplicates']:,} near ones) and {found['n_outside_mix']:,} outside the "
        f"mix, {found['n_conversations']:,} conversations in {found['n_chunks']:,} chunks",
        f"{found['n_prompt_tokens']:,} prompt tokens in first turns; at most "
        f"{humanize.intword(found['max_output_tokens'])} output tokens",
        escape(f"plan {found['plan_sha'][:12]}; {show_place(found['uri'])}: {found['store']}"),
        "",
        f"{len(keys):,} keys would be written, and one under tokens/ for each part; among them:",
        *(f"  {key}" for key in (keys if len(keys) <= 12 else [*keys[:6], "...", *keys[-5:]])),
    )


def _list_keys(plan: Plan) -> Iterator[str]:
    """List what can be known now: not the tokens parts, nor how many shards there will be."""
    yield layout.probe_key()
    yield layout.request_key()
    for receipt in plan.extracted:
        yield from receipt.part_keys
        yield receipt.rejections_key
        yield receipt.seen_key
    yield from (chunk.prompts_key for chunk in plan.chunks)
    yield layout.plan_key()
    yield from (layout.data_key(chunk.id) for chunk in plan.chunks)
    yield layout.canary_key()
    yield layout.shard_key(0, 0)
    yield layout.report_key(0)
    yield layout.manifest_key(0)
