"""A finished run without servers and without Prefect: a store with parts, samples, a manifest.

finished = finish_run(tmp_path)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.chat.template import ChatTemplate
from tasks.completions.record import Outcome
from tasks.storage.manifest import write_manifest
from tasks.storage.record import Manifest
from tasks.tokens.assemble import assemble_part
from tasks.tokens.config import BaseDatasetConfig, MergeConfig, TokensConfig
from tests.support.assembling import SETTINGS
from tests.support.generation import GenerationRun, load_template
from tests.support.merging import MERGE, merge
from tests.support.outcomes import publish_outcomes
from tests.support.simulator import MODEL_DIR
from tests.support.trainers.run import plan_every_kind

_STATUSES = ("n_completed", "n_truncated", "n_partial", "n_failed")


@dataclass(frozen=True)
class FinishedRun:
    """A run, its outcomes, and the manifest that says that it is done."""

    run: GenerationRun
    outcomes: Sequence[Outcome]
    manifest: Manifest
    prefix: str


def finish_run(
    folder: Path,
    *,
    base: BaseDatasetConfig | None = None,
    settings: MergeConfig = MERGE,
    tokens: TokensConfig = SETTINGS,
    template: ChatTemplate | None = None,
) -> FinishedRun:
    """Answer one of each kind of row, assemble, merge, and write the manifest last."""
    run, outcomes = plan_every_kind(folder, template or load_template())
    part = publish_outcomes(run, 0, outcomes)
    samples = assemble_part(run.store, run.plan, run.plan.chunks[0], part, run.template, tokens)
    merged = merge(run, [samples], base, settings=settings)
    asked: dict[str, Any] = {
        "model": {"path": str(MODEL_DIR)},
        "base": None if base is None else base.model_dump(mode="json"),
    }
    source = {
        "key": "invented",
        "dataset": "someone/invented",
        "config": None,
        "split": "train",
        "revision": "0" * 40,
        "licence": "cc0-1.0",
    }
    manifest = Manifest(
        revision=0,
        created_at="2026-01-01T00:00:00+00:00",
        plan_sha=run.plan.sha,
        plan=run.plan.model_dump(mode="json"),
        parts=(part,),
        supersedes={},
        samples=(samples.model_dump(mode="json"),),
        shards=merged.shards,
        counts={
            "n_conversations": part.footer.n_rows,
            **{name: getattr(part.footer, name) for name in _STATUSES},
            "n_samples": samples.n_samples,
            "n_base_rows": merged.counts["n_base"],
            "n_dataset_rows": merged.counts["n_rows"],
        },
        composition={
            "before": merged.base_composition.model_dump(mode="json"),
            "after": merged.composition.model_dump(mode="json"),
        },
        merge=settings.model_dump(mode="json"),
        tokens=tokens.model_dump(mode="json"),
        base=None if merged.base is None else merged.base.model_dump(mode="json"),
        request={
            "schema_version": 1,
            "asked": asked,
            "asked_sha": "0" * 64,
            "resolved": {"sources": [source], "base_sha256": None},
        },
        report_key=None,
        versions={"draftmill": "0.1.0"},
    )
    write_manifest(run.store, manifest)
    return FinishedRun(run, outcomes, manifest, run.store.uri)
