"""The report of a finished dataset, gathered from its store alone.

Enters: a store and a manifest. Leaves: ReportFigures, or a local file of the page. The run itself
and `draftmill report` gather the same figures by the same road: what the run did is in its parts,
receipts and manifest, and nowhere else; the target's tokenizer, which the request names, turns the
ids of samples to text. Every part is read once for the figures, streamed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import humanize
from rich.console import Group, RenderableType
from rich.markup import escape

from flows.dataset.export import list_parts, load_template, read_finished
from flows.dataset.inspect import open_prefix
from flows.dataset.verdict import parse_share
from flows.pages.pick import pick_samples
from flows.pages.speed import compare_speed, find_cost
from tasks.chat.template import ChatTemplate
from tasks.completions.config import Gate, GatesConfig
from tasks.completions.measure import measure_generation
from tasks.errors import UserError
from tasks.prompts.record import Plan
from tasks.report.composition import Composition
from tasks.report.page import render_report
from tasks.report.record import GateFigure, ReportFigures, VerificationFigure
from tasks.serving.config import ServingConfig
from tasks.serving.record import SIMULATED
from tasks.storage.record import Manifest, PartFooter, PartReceipt, Superseded
from tasks.storage.store import ArtifactStore
from tasks.storage.verify import Verdict, verify_dataset


def write_report(prefix: str, to: Path | None, read_data: str) -> dict[str, Any]:
    """Rebuild the report of the newest revision and write it to a local file.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.
        to: The file; None: NAME-rNNNN.html here.
        read_data: Share of the objects that verification reads in full.

    Raises:
        UserError: There is no finished dataset, or the file stands there already.
        ModelError: The target's tokenizer, which samples are shown by, cannot be had.
        CorruptPart: A part is not what the manifest says.
    """
    share = parse_share(read_data)
    with closing(open_prefix(prefix)) as store:
        manifest = read_finished(store)
        name = str(manifest.settings.get("name") or store.uri.rpartition("/")[2] or "report")
        # The name may be a stranger's: it chooses no folder.
        path = to or Path(Path(f"{name}-r{manifest.revision:04d}.html").name)
        _refuse_taken(path)
        template = load_template(manifest)
        verdict = tell_verdict(verify_dataset(store, read_data_share=share), share)
        began = time.process_time()
        figures = gather_report(store, manifest, template, verification=verdict)
        seconds = time.process_time() - began
        page = render_report(figures).encode()
    _write_new(path, page)
    return {
        "report": str(path),
        "n_bytes": len(page),
        "revision": manifest.revision,
        "n_conversations": manifest.counts.get("n_conversations", 0),
        "n_read_bytes": sum(part.n_bytes for part in (*manifest.parts, *manifest.retries)),
        "cpu_seconds": round(seconds, 3),
        "verification": verdict.model_dump(mode="json"),
    }


def describe_report(found: dict[str, Any]) -> RenderableType:
    """Say where the page is, what it cost, and whether the store is whole."""
    verdict = VerificationFigure.model_validate(found["verification"])
    rate = found["n_conversations"] / max(found["cpu_seconds"], 1e-3)
    whole = (
        f"whole: {verdict.n_objects:,} objects are what the manifest says"
        if verdict.ok
        else f"{len(verdict.problems):,} faults: `draftmill verify` names them"
    )
    lines = (
        f"{found['report']} ({humanize.naturalsize(found['n_bytes'])}), dataset "
        f"r{found['revision']:04d}",
        f"{found['n_conversations']:,} conversations, "
        f"{humanize.naturalsize(found['n_read_bytes'])} of parts read in "
        f"{found['cpu_seconds']:.1f} CPU s: {rate:,.0f} conversations/CPU s",
        whole,
    )
    return Group(*(escape(line) for line in lines))


def gather_report(
    store: ArtifactStore,
    manifest: Manifest,
    template: ChatTemplate,
    *,
    verification: VerificationFigure | None = None,
) -> ReportFigures:
    """Gather what the report of a revision shows, in one pass over its parts.

    Args:
        store: The run's store.
        manifest: Of the revision; its report need not be there yet.
        template: Of the target.
        verification: Its verdict, where the store was held against the manifest.

    Raises:
        CorruptPart: A stored object is not what the manifest says.
    """
    plan = Plan.model_validate(manifest.plan)
    parts = list_parts(store, manifest)
    receipts = [part.receipt for part in parts]
    done = measure_generation(
        store, receipts, {part.receipt.key: part.superseded for part in parts}
    )
    serving = manifest.settings.get("serving")
    serving = None if serving is None else ServingConfig.model_validate(serving)
    gates = GatesConfig.model_validate(manifest.settings.get("gates", {}))
    simulated = is_simulated(receipts)
    footers = [receipt.footer for receipt in receipts]
    cost = find_cost(serving, done, simulated=simulated, watt_hours=_sum_energy(footers))
    gone = list(manifest.superseded.values())
    return ReportFigures(
        name=str(manifest.settings.get("name") or store.uri.rpartition("/")[2]),
        uri=store.uri,
        revision=manifest.revision,
        created_at=manifest.created_at,
        simulated=simulated,
        counts=manifest.counts,
        n_asked=plan.n_prompts * plan.n_samples,
        before=Composition.model_validate(manifest.composition["before"]),
        after=Composition.model_validate(manifest.composition["after"]),
        finish_reasons=add_up(made["finish_reasons"] for made in manifest.samples),
        failures=_without(
            add_up(footer.failures for footer in footers), add_up(one.failures for one in gone)
        ),
        rejections=add_up(receipt.rejections for receipt in plan.extracted),
        dropped=add_up(made["n_dropped"] for made in manifest.samples),
        gates=measure_gates(gates, footers, gone),
        generation=done,
        cost=cost,
        speed=() if serving is None else compare_speed(serving, plan, done, cost),
        verification=verification,
        samples=pick_samples(store, manifest, parts, gates, template),
        settings=list_settings(manifest),
        lineage=trace_lineage(plan, manifest.request, manifest),
    )


def is_simulated(parts: Iterable[PartReceipt]) -> bool:
    """Whether any answer was invented by a simulated server, launched or attached."""
    return any(
        version.endswith(SIMULATED)
        for part in parts
        for version in part.footer.server_versions.values()
    )


def trace_lineage(
    plan: Plan, request: Mapping[str, Any], manifest: Manifest | None = None
) -> dict[str, str]:
    """Name what the answers were made from."""
    resolved = request["resolved"]
    lineage = {
        "plan": plan.sha,
        "model": plan.model,
        "model revision": plan.model_revision or "newest at the time",
        "dtype, quantisation": f"{plan.dtype}, {plan.quantization or 'none'}",
        "tokenizer sha256": plan.tokenizer_sha256,
        "chat template sha256": plan.chat_template_sha256,
    }
    for source in resolved["sources"]:
        lineage[f"source {source['key']}"] = (
            f"{source['dataset']} @ {source['revision']} ({source['licence']})"
        )
    if resolved.get("base_sha256"):
        lineage["base dataset sha256"] = resolved["base_sha256"]
    if manifest is not None:
        for part, retried in manifest.supersedes.items():
            lineage[f"{part} (damaged)"] = f"replaced by {retried}"
        lineage |= {f"retry list {key}": sha for key, sha in manifest.retry_lists.items()}
        lineage |= {f"{name} version": told for name, told in manifest.versions.items()}
    return lineage


def list_settings(manifest: Manifest) -> dict[str, Any]:
    """Give every setting of a run exactly as it was."""
    return {
        **manifest.request["asked"],
        **manifest.settings,
        "tokens": manifest.tokens,
        "merge": manifest.merge,
    }


def measure_gates(
    gates: GatesConfig, footers: Sequence[PartFooter], superseded: Sequence[Superseded] = ()
) -> tuple[GateFigure, ...]:
    """Add up what the gates flagged, without what a retry stands in for."""
    flagged = _without(
        add_up(footer.gates for footer in footers), add_up(gone.gates for gone in superseded)
    )
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


def add_up(tallies: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add tallies by name."""
    total: Counter[str] = Counter()
    for tally in tallies:
        total.update(tally)
    return dict(total)


def now() -> str:
    """Give the time as records hold it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sum_energy(footers: Sequence[PartFooter]) -> float | None:
    """Add up what every part's writer measured; None where one did not."""
    used = [footer.watt_hours for footer in footers]
    known = [each for each in used if each is not None]
    return sum(known) if known and len(known) == len(used) else None


def tell_verdict(verdict: Verdict, share: float) -> VerificationFigure:
    """Put a verdict, of which `share` of the objects were read in full, into the report's terms."""
    return VerificationFigure(
        ok=verdict.ok,
        n_objects=verdict.n_objects,
        share_read=share,
        problems=verdict.problems,
        verified_at=now(),
    )


def _write_new(path: Path, page: bytes) -> None:
    """Write a file that is not there yet; where the disk is full, nothing of it stays."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise _taken(path) from None
    try:
        with file:
            file.write(page)
    except OSError:
        path.unlink()
        raise


def _refuse_taken(path: Path) -> None:
    if path.exists():
        raise _taken(path)
    if not path.parent.is_dir():
        raise UserError(
            "there is no such folder", where=str(path.parent), remedy="Make it, or give another."
        )


def _taken(path: Path) -> UserError:
    return UserError(
        "the file stands there already, and nothing is written over",
        where=str(path),
        remedy="Give another with --to.",
    )


def _without(tally: dict[str, int], gone: dict[str, int]) -> dict[str, int]:
    """Take what no longer counts out; gates set otherwise since may have counted it otherwise."""
    left = {name: n - gone.get(name, 0) for name, n in tally.items()}
    return {name: n for name, n in left.items() if n > 0}
