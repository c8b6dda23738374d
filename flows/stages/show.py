"""What a run shows to people while it goes on: the canary's preview, and the report at its end.

Enters: a Run, receipts, a manifest. Leaves: published pages.
"""

from __future__ import annotations

import asyncio

from flows.pages.pick import pick_plain
from flows.pages.report import (
    gather_report,
    is_simulated,
    measure_gates,
    now,
    tell_verdict,
    trace_lineage,
)
from flows.stages.opened import Run
from tasks.completions.measure import measure_generation
from tasks.completions.record import decode_outcome
from tasks.prompts.chunk import read_chunk
from tasks.prompts.record import Plan
from tasks.report.projection import Conversed, project
from tasks.report.record import CanaryFigures, Projection, ReportFigures
from tasks.report.task import ReportContext, publish_canary, publish_report, report_context
from tasks.storage.part import iter_rows
from tasks.storage.record import Manifest, PartReceipt
from tasks.storage.verify import verify_manifest
from tasks.tokens.record import SamplesReceipt

_SHOWN_IN_CANARY = 20


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
            gates=measure_gates(run.config.gates, [footer]),
            generation=await asyncio.to_thread(measure_generation, run.store, [part], {}),
            samples=await asyncio.to_thread(
                pick_plain, run.store, [samples], run.template, most_a_source=_SHOWN_IN_CANARY
            ),
            projection=await asyncio.to_thread(_project, run, plan, part, n_slots),
            lineage=trace_lineage(plan, run.request.model_dump(mode="json")),
        )
    )


async def publish_report_page(run: Run, manifest: Manifest) -> str:
    """Show what the run did, before its manifest is written; give the page's key.

    The store is held against the manifest that is about to be written: sizes, headers and footers
    of everything, and all bytes of the parts, which are read once for the figures.
    """
    report_context.set(ReportContext(run.store))
    run.narrator.stage("report", "reading every part once")

    def gather() -> ReportFigures:
        verdict = verify_manifest(run.store, manifest, read_data_share=0.0)
        told = tell_verdict(verdict, 0.0)
        return gather_report(run.store, manifest, run.template, verification=told)

    return await publish_report(await run.store.run(gather))


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
