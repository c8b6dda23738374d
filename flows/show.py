"""What a run shows to people: figures for the canary's preview and for the report.

Enters: a Run, its Plan, receipts. Leaves: published pages. Samples are shown from the canary, which
holds some of every source.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import get_args

from flows.opened import Run
from flows.speed import compare_speed
from tasks.completions.config import Gate
from tasks.completions.record import decode_outcome
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import Plan
from tasks.report.projection import Conversed, project
from tasks.report.record import (
    CanaryFigures,
    EndpointFigure,
    GateFigure,
    Projection,
    ReportFigures,
    ShownSample,
)
from tasks.report.spans import show_sample
from tasks.report.task import ReportContext, publish_canary, publish_report, report_context
from tasks.serving.record import SIMULATED
from tasks.storage.part import iter_rows
from tasks.storage.record import PartFooter, PartReceipt, Superseded
from tasks.storage.retry import Standing
from tasks.tokens.assemble import iter_samples
from tasks.tokens.record import MergeReceipt, SamplesReceipt, name_conversation

_SHOWN_IN_CANARY = 20
_SHOWN_IN_REPORT = 4


async def publish_canary_page(
    run: Run, plan: Plan, part: PartReceipt, samples: SamplesReceipt, n_slots: int | None
) -> str:
    """Show chunk 0 before any other opens; give the page's key.

    Args:
        run: The run.
        plan: Its plan.
        part: Of chunk 0.
        samples: Made of it.
        n_slots: Requests that the servers hold at once; None where none is asked for now.
    """
    report_context.set(ReportContext(run.store))
    footer = part.footer
    counts = footer.model_dump(include={"n_completed", "n_truncated", "n_partial", "n_failed"})
    counts |= {
        "n_conversations": footer.n_rows,
        "n_generations": footer.n_generations,
        "n_samples": samples.n_samples,
        "n_dropped": sum(samples.n_dropped.values()),
    }
    return await publish_canary(
        CanaryFigures(
            name=run.config.name,
            uri=run.store.uri,
            created_at=now(),
            simulated=is_simulated([part]),
            counts=counts,
            finish_reasons=samples.finish_reasons,
            failures=footer.failures,
            gates=_gates_of(run, [footer]),
            endpoints=_endpoints_of([footer]),
            samples=await asyncio.to_thread(_pick_samples, run, samples, _SHOWN_IN_CANARY),
            projection=await asyncio.to_thread(_project, run, plan, part, n_slots),
            lineage=lineage_of(run, plan),
        )
    )


async def publish_report_page(
    run: Run,
    plan: Plan,
    standing: Standing,
    superseded: Mapping[str, Superseded],
    *,
    samples: Sequence[SamplesReceipt],
    merged: MergeReceipt,
    revision: int,
    counts: dict[str, int],
) -> str:
    """Show what the run did; give the page's key."""
    report_context.set(ReportContext(run.store))
    footers = [part.footer for part in standing.all_parts]
    return await publish_report(
        ReportFigures(
            name=run.config.name,
            uri=run.store.uri,
            revision=revision,
            created_at=now(),
            simulated=is_simulated(standing.all_parts),
            counts=counts,
            before=merged.base_composition,
            after=merged.composition,
            finish_reasons=_add(made.finish_reasons for made in samples),
            failures=_without(
                _add(footer.failures for footer in footers),
                _add(gone.failures for gone in superseded.values()),
            ),
            rejections=_add(receipt.rejections for receipt in plan.extracted),
            dropped=_add(made.n_dropped for made in samples),
            gates=_gates_of(run, footers, list(superseded.values())),
            endpoints=_endpoints_of(footers),
            speed=compare_speed(run.config, plan, counts, len(_endpoints_of(footers))),
            samples=await asyncio.to_thread(_pick_samples, run, samples[0], _SHOWN_IN_REPORT),
            settings=run.request.asked,
            lineage=lineage_of(run, plan),
        )
    )


def is_simulated(parts: Iterable[PartReceipt]) -> bool:
    """Whether any answer was invented by a simulated server, launched or attached."""
    return any(
        version.endswith(SIMULATED)
        for part in parts
        for version in part.footer.server_versions.values()
    )


def lineage_of(run: Run, plan: Plan) -> dict[str, str]:
    """Name what the answers were made from."""
    lineage = {
        "plan": plan.sha,
        "model": plan.model,
        "model revision": plan.model_revision or "newest at the time",
        "tokenizer sha256": plan.tokenizer_sha256,
        "chat template sha256": plan.chat_template_sha256,
    }
    for source in run.sources:
        lineage[f"source {source.key}"] = f"{source.dataset} @ {source.revision} ({source.licence})"
    return lineage


def now() -> str:
    """Give the time as records hold it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _gates_of(
    run: Run, footers: Sequence[PartFooter], superseded: Sequence[Superseded] = ()
) -> tuple[GateFigure, ...]:
    gates = run.config.gates
    flagged = _without(_add(f.gates for f in footers), _add(gone.gates for gone in superseded))
    n_gone = sum(gone.n_rows - gone.n_failed for gone in superseded)
    return tuple(
        GateFigure(
            name=gate,
            n_flagged=flagged.get(gate, 0),
            n_judged=sum(footer.n_rows - footer.n_failed for footer in footers) - n_gone,
            threshold=getattr(gates, gate),
            accepted=gate in gates.accept,
        )
        for gate in get_args(Gate)
    )


def _endpoints_of(footers: Sequence[PartFooter]) -> tuple[EndpointFigure, ...]:
    versions = {url: v for footer in footers for url, v in footer.server_versions.items()}
    return tuple(
        EndpointFigure(base_url=url, server_version=version)
        for url, version in sorted(versions.items())
    )


def _project(run: Run, plan: Plan, part: PartReceipt, n_slots: int | None) -> Projection | None:
    """Judge by the canary's lengths and speeds what the whole run may take."""
    sources = {prompt.id: prompt.source.key for prompt in read_chunk(run.store, plan.chunks[0])}
    canary = [
        Conversed(
            source=sources[outcome.prompt_id],
            n_output_tokens=sum(c.usage.completion_tokens for c in outcome.completions),
            seconds=sum(c.latency_seconds for c in outcome.completions),
        )
        for outcome in map(decode_outcome, iter_rows(run.store, part.key))
        if outcome.completions
    ]
    # What duplicates across sources took away is shared out evenly.
    n_extracted = sum(receipt.n_prompts for receipt in plan.extracted)
    scale = plan.n_prompts * plan.n_samples / max(1, n_extracted)
    n_by_source = {receipt.source: receipt.n_prompts * scale for receipt in plan.extracted}
    serving = run.config.serving
    is_ours = serving.mode == "launch" and serving.engine == "sglang"
    n_gpus = serving.n_servers * serving.tp_size if is_ours else None
    return project(canary, n_by_source, n_slots=n_slots, n_gpus=n_gpus)


def _pick_samples(run: Run, samples: SamplesReceipt, most: int) -> tuple[ShownSample, ...]:
    """Take the samples of the first conversations of each source."""
    taken: dict[str, set[str]] = {}
    shown: list[ShownSample] = []
    for sample in iter_samples(run.store, samples):
        conversations = taken.setdefault(sample.source, set())
        name = name_conversation(sample.id)
        if name in conversations or len(conversations) < most:
            conversations.add(name)
            shown.append(
                show_sample(
                    run.template,
                    row_id=sample.id,
                    source=sample.source,
                    domain=sample.domain,
                    finish_reason=sample.finish_reason,
                    input_ids=sample.input_ids.tolist(),
                    loss_mask=sample.loss_mask.tolist(),
                )
            )
    return tuple(shown)


def _without(tally: dict[str, int], gone: dict[str, int]) -> dict[str, int]:
    """Take what no longer counts out; gates set otherwise since may have counted it otherwise."""
    left = {name: n - gone.get(name, 0) for name, n in tally.items()}
    return {name: n for name, n in left.items() if n > 0}


def _add(tallies: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return dict(total)
