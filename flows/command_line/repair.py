"""Mends a finished run: revisions of what is damaged, and the next manifest; nothing in silence.

Enters: a prefix or a configuration. Leaves: what was found and done, and a verdict afterwards.
Damaged parts are published again from the journals where these are still there, else their answers
are asked for anew, which needs the configuration. Samples and dataset are made from the parts, and
the request and the plan from the manifest, by the prefix alone.
"""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.command_line.launch import launch_expansion
from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.dataset.inspect import open_prefix
from flows.dataset.verdict import judge_store, verify_prefix
from flows.stages.damage import known_damage, known_missing
from tasks.errors import DatasetInvalid, UserError
from tasks.storage.layout import parse_retry_key, plan_key, request_key
from tasks.storage.location import parse_uri
from tasks.storage.manifest import read_latest
from tasks.storage.record import Manifest, Request
from tasks.storage.request import freeze_json, freeze_request
from tasks.storage.store import ArtifactStore

# Each at a key of its own for ever: a damaged one stands in the way of its like.
_FIXED = ("_run/", "extracted/", "prompts/")
# For the rebuilding alone, which asks no server.
_NO_SERVERS = {"mode": "attach", "urls": ["http://127.0.0.1:9"]}


def repair_run(place: str) -> dict[str, Any]:
    """Find what is damaged, make revisions of it, write the next manifest, verify again.

    Args:
        place: The run's configuration; or its prefix, where no answer must be asked for again.

    Raises:
        UserError: There is no run, or answers must be asked for and no configuration says of whom.
        DatasetInvalid: Damaged objects stand in the way; each with the command that moves it.
        RunError: The run that mends ended early.
    """
    config = None if "://" in place or Path(place).is_dir() else load_config(place).config
    with closing(open_prefix(place)) as store:
        before = judge_store(store, 1.0)
        if before["ok"]:
            return {"uri": store.uri, "state": "whole", "found": [], "done": [], "after": before}
        manifest = read_latest(store)
        _refuse_stuck(store, before["damaged"])
        done = _restore(store, manifest, before["damaged"])
        missing = {key for key in before["damaged"] if store.head(key) is None}
    known_damage.set(frozenset(before["damaged"]) - missing)
    known_missing.set(frozenset(missing))
    if config is not None:
        launch_expansion(config)
    else:
        rebuilt = _read_config(before["uri"], manifest)
        launch_expansion(rebuilt, flow="rebuild")
    after = verify_prefix(place, 1.0)
    with closing(open_prefix(place)) as store:
        done += _tell_done(manifest, read_latest(store))
    return {
        "uri": before["uri"],
        "state": "mended" if after["ok"] else "faults are left",
        "found": before["problems"],
        "done": done,
        "after": after,
    }


def describe_repair(found: dict[str, Any]) -> RenderableType:
    """Say what was found, what was done, and what is left."""
    if found["state"] == "whole":
        return f"whole: {found['after']['n_objects']:,} objects; nothing was written"
    lines = [f"{len(found['found'])} faults were found in {found['uri']}:"]
    lines += [f"  {problem}" for problem in found["found"]]
    lines += ["what was done:", *(f"  {line}" for line in found["done"])]
    left = found["after"]["problems"]
    lines += ["faults that are left:", *(f"  {problem}" for problem in left)] if left else []
    lines.append(f"now: {found['state']}")
    return Group(*(escape(line) for line in lines))


def _refuse_stuck(store: ArtifactStore, damaged: list[str]) -> None:
    lists = [key for key in damaged if parse_retry_key(key) is not None]
    if lists:
        raise DatasetInvalid(
            "the lists of retries are damaged; without them nobody knows which answers count",
            problems=tuple(f"{key}: restore it from a copy" for key in lists),
            where=store.uri,
            remedy="Nothing was written. Restore them (the manifest holds each one's sha256), "
            "and repair again.",
        )
    stuck = [k for k in damaged if k.startswith(_FIXED) and store.head(k) is not None]
    if stuck:
        raise DatasetInvalid(
            "damaged objects stand at keys that have no revisions; nothing is written over here",
            problems=tuple(_write_move(store.uri, key) for key in stuck),
            where=store.uri,
            remedy="Move them away with the commands below, and repair again: they are made anew.",
        )


def _write_move(uri: str, key: str) -> str:
    aside = f"{uri}-damaged/{key}"
    if uri.startswith("s3://"):
        return f"aws s3 mv {shlex.quote(f'{uri}/{key}')} {shlex.quote(aside)}"
    old, new = (Path(f"/{parse_uri(place).path}") for place in (f"{uri}/{key}", aside))
    folder = shlex.quote(f"{new.parent}/")
    return f"mkdir -p {folder} && mv {shlex.quote(str(old))} {folder}"


def _restore(store: ArtifactStore, manifest: Manifest | None, damaged: list[str]) -> list[str]:
    """Write the request and the plan again from the manifest, where they are missing."""
    done: list[str] = []
    if manifest is None:
        return done
    if request_key() in damaged and manifest.request:
        request = Request.model_validate(manifest.request)
        freeze_request(store, request.asked, lambda: request.resolved)
        done.append(f"{request_key()}: written again, from the manifest")
    if plan_key() in damaged:
        freeze_json(store, plan_key(), manifest.plan, "plan")
        done.append(f"{plan_key()}: written again, from the manifest")
    return done


def _read_config(uri: str, manifest: Manifest | None) -> ExpansionConfig:
    """Read from the manifest what assembling and merging need to know.

    Raises:
        UserError: The manifest does not say it.
    """
    asked = manifest.request.get("asked") if manifest else None
    if manifest is None or not asked or not manifest.tokens:
        raise _needs_config(uri, "the manifest does not say how its samples were made")
    if asked["base"] is not None:
        raise _needs_config(uri, "where the base dataset lies is not in the manifest")
    return ExpansionConfig.model_validate(
        {
            **asked,
            "name": "repair",
            "store": {"uri": uri},
            "serving": _NO_SERVERS,
            **manifest.settings,
            "tokens": manifest.tokens,
            "merge": manifest.merge,
        }
    )


def _needs_config(uri: str, what: str) -> UserError:
    return UserError(
        f"the prefix alone does not do: {what}",
        where=uri,
        remedy="Run `draftmill repair CONFIG` with the configuration of the run.",
    )


def _tell_done(before: Manifest | None, after: Manifest | None) -> list[str]:
    if after is None or (before is not None and before.revision == after.revision):
        return []
    old = set() if before is None else _list_keys(before)
    new = sorted(_list_keys(after) - old)
    unlisted = {entry.key for entry in before.objects} if before else set()
    unlisted -= {entry.key for entry in after.objects}
    return [
        *(f"{key}: made" for key in new),
        *(f"{key}: left as it is, and no longer listed" for key in sorted(unlisted)),
        f"_manifest/r{after.revision:04d}.json: written; it counts now",
    ]


def _list_keys(manifest: Manifest) -> set[str]:
    keys = {part.key for part in (*manifest.parts, *manifest.retries)}
    keys |= {str(sample["key"]) for sample in manifest.samples}
    keys |= {shard.key for shard in manifest.shards}
    return keys | {entry.key for entry in manifest.objects}
