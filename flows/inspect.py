"""Looks at a run from its store alone: how far it is, and whether it is whole."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from flows.load import load_config
from flows.speak import table
from tasks.errors import CorruptPart, UserError
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.storage import layout, part
from tasks.storage.config import StoreConfig
from tasks.storage.manifest import read_latest
from tasks.storage.record import Request
from tasks.storage.request import read_request
from tasks.storage.store import ArtifactStore, open_store
from tasks.storage.verify import verify_dataset

_COUNTS = ("n_completed", "n_truncated", "n_partial", "n_failed", "n_output_tokens")


def read_status(prefix: str) -> dict[str, Any]:
    """Tell how far the run at a prefix is.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.

    Raises:
        UserError: There is no run at the prefix.
    """
    with closing(open_prefix(prefix)) as store:
        request = _read_request(store)
        found: dict[str, Any] = {"uri": store.uri, "asked_sha": request.asked_sha}
        plan = read_plan(store)
        if plan is None:
            return {**found, "stage": "extracting"}
        found |= {"plan_sha": plan.sha, "n_chunks": len(plan.chunks)}
        found |= _count_parts(store, plan)
        manifest = read_latest(store)
        if manifest is not None:
            return {
                **found,
                "stage": "done",
                "manifest": layout.manifest_key(manifest.revision),
                "counts": manifest.counts,
            }
        stage = "generating" if found["n_chunks_done"] < len(plan.chunks) else "assembling"
        return {**found, "stage": stage}


def describe_status(found: dict[str, Any]) -> RenderableType:
    """Lay the status out; the counts of a finished run stand beside the others."""
    values = {key: value for key, value in found.items() if key != "counts"}
    values |= found.get("counts", {})
    rows = [
        (key.removeprefix("n_").replace("_", " "), _show(value)) for key, value in values.items()
    ]
    return table(("", ""), rows)


def verify_prefix(prefix: str, read_data_share: float) -> dict[str, Any]:
    """Hold every object of a run against its newest manifest.

    Raises:
        UserError: There is no finished run at the prefix.
    """
    with closing(open_prefix(prefix)) as store:
        _read_request(store)
        verdict = verify_dataset(store, read_data_share=read_data_share)
        return {"uri": store.uri, **verdict.model_dump(mode="json")}


def describe_verdict(found: dict[str, Any]) -> RenderableType:
    """Say whether the run is whole, and name each fault."""
    if found["ok"]:
        return f"whole: {found['n_objects']:,} objects are what the manifest says"
    head = f"{len(found['problems'])} faults in {found['uri']}:"
    return Group(head, *(f"  {problem}" for problem in found["problems"]))


def open_prefix(prefix: str) -> ArtifactStore:
    """Open the store of a run that is there already."""
    # To look at a run nothing need be protected; and what is wrong with a uri, the store says best.
    # Credentials blocks need Prefect; only a configuration can name one.
    if "://" in prefix:
        return open_store(StoreConfig.model_construct(uri=prefix, protected=()))
    if _is_folder(prefix):
        return open_store(StoreConfig(uri=Path(prefix).resolve().as_uri(), protected=()))
    config = load_config(prefix).config.store.model_copy(update={"protected": ()})
    if config.s3.credentials_block is None:
        return open_store(config)
    from flows.embedded import prepare_prefect  # noqa: PLC0415
    from tasks.settings import read_settings  # noqa: PLC0415

    prepare_prefect(read_settings())
    from tasks.storage.task import load_credentials  # noqa: PLC0415

    return open_store(config, asyncio.run(load_credentials(config)))


def _is_folder(path: str) -> bool:
    try:
        return path != "" and Path(path).is_dir()
    except (OSError, ValueError):  # a name too long, a NUL: no folder
        return False


def _read_request(store: ArtifactStore) -> Request:
    request = read_request(store)
    if request is None:
        raise UserError(
            "there is no run at this prefix",
            where=store.uri,
            remedy="Give the prefix that `draftmill run` printed, or the configuration.",
        )
    return request


def _count_parts(store: ArtifactStore, plan: Plan) -> dict[str, Any]:
    """Add up the footers of the parts that are there; their rows are not read."""
    totals = dict.fromkeys(_COUNTS, 0)
    done: set[int] = set()
    n_damaged = 0
    for stat in store.list("data/"):
        place = layout.parse_data_key(stat.key)
        if place is None or place[0] in done:
            continue
        try:
            header, footer = part.peek(store, stat.key)
        except CorruptPart:
            n_damaged += 1
            continue
        if header.plan_sha == plan.sha:
            done.add(place[0])
            for key in _COUNTS:
                totals[key] += getattr(footer, key)
    n_conversations = plan.n_prompts * plan.n_samples
    counts = {"n_chunks_done": len(done), "n_conversations": n_conversations, **totals}
    return {**counts, "n_parts_damaged": n_damaged} if n_damaged else counts


def _show(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
