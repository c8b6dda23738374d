"""The dataset card: what the rows are, and all that they were made from. Pure.

Enters: a manifest, the prefix, the form of an export. Leaves: README.md with the front matter that
the Hub reads. It exists so that a copy of the data, far from its store, still says whose answers it
holds, by which settings, and under whose licences.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.report.composition import Composition, share
from tasks.report.inert import strip_controls
from tasks.serving.record import SIMULATED
from tasks.storage.record import Manifest

CARD_NAME = "README.md"

_FILES = {
    "specforge": "*.jsonl",
    "speculators": "*.arrow",
    "messages": "*.jsonl",
    "parquet": "*.parquet",
}
_COLUMNS = {
    "specforge": "`input_ids` and `loss_mask`, of equal length, as JSON lines. SpecForge reads one "
    "file at a time, and speculators' prepare-data takes the folder.",
    "speculators": "`input_ids`, `loss_mask` and `seq_len`, for `load_from_disk` with torch.",
    "messages": "`id`, `messages` (the last one is the target's answer, with `reasoning_content` "
    "and `tool_calls`) and `tools`, a JSON string. Answers cut at max_tokens are left out.",
    "parquet": "`id`, `source`, `domain`, `input_ids` (list<int32>), `loss_mask` (list<int8>), "
    "`seq_len`, `finish_reason` and `token_source`.",
}


def write_card(manifest: Manifest, uri: str, form: str, folder: str = "") -> str:
    """Write the card of one revision in one form.

    Args:
        manifest: Of the revision.
        uri: The prefix that it lies under.
        form: Of the files.
        folder: Where they lie beside the card; other folders may hold other revisions.
    """
    plan, asked = manifest.plan, manifest.request["asked"]
    resolved = manifest.request["resolved"]
    before = Composition.model_validate(manifest.composition["before"])
    after = Composition.model_validate(manifest.composition["after"])
    lineage = {
        "dataset": f"{uri}, revision r{manifest.revision:04d}, {manifest.created_at}",
        "plan": manifest.plan_sha,
        "target model": plan["model"],
        "model revision": plan["model_revision"] or "newest at the time",
        "dtype, quantisation": f"{plan['dtype']}, {plan['quantization'] or 'none'}",
        "tokenizer sha256": plan["tokenizer_sha256"],
        "chat template sha256": plan["chat_template_sha256"],
        "thinking": plan["thinking"],
        "sampling": json.dumps(plan["sampling"], sort_keys=True),
        "answers": f"{plan['n_samples']} a prompt, at most {plan['max_tokens']} tokens",
        "server versions": ", ".join(list_server_versions(manifest)),
        "sample settings": json.dumps(manifest.tokens, sort_keys=True),
        "merge settings": json.dumps(manifest.merge, sort_keys=True),
        "base dataset": _describe_base(manifest, asked, resolved),
        "draftmill": manifest.versions.get("draftmill", "unknown"),
    }
    sources = [
        (s["key"], s["dataset"], s["config"] or "", s["split"], s["revision"], s["licence"])
        for s in resolved["sources"]
    ]
    lines = [
        *_write_front_matter(f"{folder}/{_FILES[form]}" if folder else _FILES[form]),
        f"# {strip_controls(str(plan['model']))}: answers as training data for a drafter",
        "",
        "Public prompts, answered anew by the target model itself. The loss mask is 0 on what it "
        "was asked and 1 on every id that it sampled; it is not shifted.",
        "",
        *_warn_of_simulation(manifest),
        f"Each row: {_COLUMNS[form]}",
        "",
        "## Lineage",
        "",
        *_table(("what", "value"), list(lineage.items())),
        "",
        "## Sources of the prompts",
        "",
        *_table(("source", "dataset", "config", "split", "revision", "licence"), sources),
        "",
        "## Composition",
        "",
        *_table(
            ("domain", "rows", "supervised tokens", "share before", "share after"),
            _compare(before, after),
        ),
        "",
        "## Counts",
        "",
        *_table(("what", "number"), list(manifest.counts.items())),
        "",
    ]
    return "\n".join(lines)


def list_server_versions(manifest: Manifest) -> list[str]:
    """List the versions of the servers that answered, each once."""
    return sorted(
        {
            version
            for part in (*manifest.parts, *manifest.retries)
            for version in part.footer.server_versions.values()
        }
    )


def _write_front_matter(data_files: str) -> list[str]:
    return [
        "---",
        "license: other",
        "tags: [speculative-decoding, draft-model, draftmill]",
        "configs:",
        "  - config_name: default",
        f'    data_files: "{data_files}"',
        "---",
        "",
    ]


def _warn_of_simulation(manifest: Manifest) -> list[str]:
    if not any(version.endswith(SIMULATED) for version in list_server_versions(manifest)):
        return []
    return ["**The answers are simulated: invented text, no model was asked.**", ""]


def _describe_base(manifest: Manifest, asked: dict[str, Any], resolved: dict[str, Any]) -> str:
    if resolved["base_sha256"] is None:
        return "none"
    # A triggered run's base is the dataset of the run before it.
    place = asked["base"]["path"] if asked.get("base") else "the dataset of an earlier run"
    how = "copied into this dataset" if manifest.base is None else "referred to, not copied"
    rows = manifest.counts.get("n_base_rows", 0)
    return f"{place}, sha256 {resolved['base_sha256']}, {rows} rows, {how}"


def _compare(before: Composition, after: Composition) -> list[tuple[Any, ...]]:
    was, now = before.total.n_supervised_tokens, after.total.n_supervised_tokens
    rows = []
    for name, tally in sorted(after.by_domain.items(), key=lambda item: -item[1].n_rows):
        old = before.by_domain.get(name)
        share_before = share(old.n_supervised_tokens if old else 0, was)
        share_after = share(tally.n_supervised_tokens, now)
        shares = (f"{share_before:.1%}", f"{share_after:.1%}")
        rows.append((name, tally.n_rows, tally.n_supervised_tokens, *shares))
    return rows


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(_quote(cell) for cell in row)} |" for row in rows]


def _quote(cell: Any) -> str:
    """Write a value so that nothing of it acts as Markdown or HTML."""
    text = strip_controls(str(cell)).replace("`", "'").replace("|", "/").replace("\n", " ").strip()
    return f"`{text}`" if text else ""
