"""What became of a run, as its store alone tells it.

Enters: a store with a request. Leaves: the stage that the run is at, and why it is at a stand. A
few listings and small objects are read, and no part, so that hundreds of runs can be looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flows.command_line.status import count_open_shares
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.storage import layout
from tasks.storage.manifest import read_latest
from tasks.storage.presence import Attendance, read_newest
from tasks.storage.record import Manifest, Request
from tasks.storage.retry import read_retries
from tasks.storage.store import ArtifactStore

Stage = Literal[
    "done", "nothing new", "at work", "stopped by a gate", "awaiting review", "failed", "open"
]
_STOPPED: dict[str, Stage] = {
    "StoppedByGate": "stopped by a gate",
    "AwaitingReview": "awaiting review",
}


@dataclass(frozen=True, slots=True)
class Judged:
    """Where a run is.

    Attributes:
        stage: What became of it.
        detail: How far it came.
        last_words: What its last process ended by, where it said so.
        n_lost: Failed and partial conversations of a run that is done.
    """

    stage: Stage
    detail: str
    last_words: str = ""
    n_lost: int = 0


def judge_stage(store: ArtifactStore, request: Request) -> Judged:
    """Judge where a run is.

    Raises:
        CorruptPart: An object that says it is damaged.
    """
    newest = read_newest(store, (stat.key for stat in store.list(layout.presence_prefix())))
    if newest is not None and newest.ended is None and newest.is_alive:
        began = newest.began
        return Judged("at work", f"since {began.began_at}, process {began.pid} of this machine")
    plan = read_plan(store)
    if plan is None:
        return _judge_unplanned(store, request, newest)
    manifest = read_latest(store)
    retries = read_retries(store, plan.sha)
    n_open = count_open_shares(store, retries)
    if manifest is not None and not n_open and len(manifest.retry_lists) == len(retries):
        return _judge_done(manifest)
    if n_open:
        return _explain(newest, f"{n_open} parts of retries are to come")
    return _explain(newest, _tell_progress(store, plan))


def _judge_unplanned(store: ArtifactStore, request: Request, newest: Attendance | None) -> Judged:
    """Judge a run without a plan: extraction is not done, or it found nothing new."""
    sources = [source["key"] for source in request.resolved["sources"]]
    extracted = {stat.key for stat in store.list("extracted/")}
    is_read = all(layout.seen_key(source) in extracted for source in sources)
    has_prompts = any(layout.extracted_key(source, 0) in extracted for source in sources)
    if is_read and not has_prompts and request.resolved["past"]["runs"]:
        return Judged("nothing new", "earlier runs met every row")
    return _explain(newest, "the sources were being read")


def _judge_done(manifest: Manifest) -> Judged:
    counts = manifest.counts
    n_all, n_lost = (
        counts.get("n_conversations", 0),
        sum(counts.get(name, 0) for name in ("n_failed", "n_partial")),
    )
    return Judged(
        "done",
        f"{n_all - n_lost:,} of {n_all:,} conversations are whole, manifest "
        f"r{manifest.revision:04d}",
        n_lost=n_lost,
    )


def _tell_progress(store: ArtifactStore, plan: Plan) -> str:
    places = (layout.parse_data_key(stat.key) for stat in store.list("data/"))
    n_there = len({place[0] for place in places if place is not None})
    return f"{n_there:,} of {len(plan.chunks):,} chunks are published"


def _explain(newest: Attendance | None, progress: str) -> Judged:
    """Say why a run that is not done is at a stand: its last process told it, or could not."""
    if newest is None:
        return Judged("open", progress)
    began, ended = newest.began, newest.ended
    if ended is None:
        whose = f"process {began.pid} of {began.host}, begun at {began.began_at}"
        fate = "was killed" if newest.is_alive is False else "has not said that it ended"
        return Judged("open", f"{progress}; {whose}, {fate}")
    said = f"{ended.state}: {ended.message}" if ended.message else ended.state
    stage = _STOPPED.get(ended.state, "failed" if ended.state else "open")
    return Judged(stage, progress, f"{ended.ended_at} {said}".rstrip())
