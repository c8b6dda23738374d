"""How far a run is: by its store from anywhere, and by the journals too on the box that runs it.

Enters: a prefix. Leaves: counts, once or time after time until the run is done. Nothing is locked
and nothing is written. What was read of a part is kept: a part never changes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from rich.console import RenderableType
from rich.live import Live

from flows.dataset.inspect import open_prefix, require_request
from flows.pages.eta import estimate_end
from flows.pages.view import describe_eta
from flows.process.speak import OUT, print_json, table
from tasks.completions.generate import spool_folder
from tasks.completions.replay import SpoolCounts, count_spool
from tasks.errors import CorruptPart
from tasks.prompts.chunk import read_plan
from tasks.prompts.record import Plan
from tasks.settings import read_settings
from tasks.storage import layout, part
from tasks.storage.manifest import read_latest
from tasks.storage.record import Manifest, PartFooter, RetryList
from tasks.storage.retry import read_retries, split_retry
from tasks.storage.store import ArtifactStore

_STATUSES = ("completed", "truncated", "partial", "failed")
_NOW_SECONDS = 60.0


def read_status(prefix: str) -> dict[str, Any]:
    """Tell how far the run at a prefix is.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.

    Raises:
        UserError: There is no run at the prefix.
    """
    with closing(open_prefix(prefix)) as store:
        return StatusReader(store).read()


def watch_status(prefix: str, every_seconds: float, *, json: bool) -> dict[str, Any]:
    """Show the status again and again, in place on a terminal, until the run is done.

    Args:
        prefix: As for `read_status`.
        every_seconds: Between two looks.
        json: Print each look as one line of JSON.

    Returns:
        The last look, which is not shown.

    Raises:
        UserError: There is no run at the prefix.
    """
    with closing(open_prefix(prefix)) as store:
        reader, pace = StatusReader(store), Pace()
        if json:
            return _repeat(
                reader, pace, every_seconds, lambda found: print_json("status", found, compact=True)
            )
        if not OUT.is_terminal:
            return _repeat(
                reader, pace, every_seconds, lambda found: OUT.print(_in_one_line(found))
            )
        with Live(console=OUT, transient=True, auto_refresh=False) as live:
            return _repeat(
                reader,
                pace,
                every_seconds,
                lambda found: live.update(describe_status(found), refresh=True),
            )


class StatusReader:
    """Looks at one run as often as it is asked to."""

    def __init__(self, store: ArtifactStore) -> None:
        """Look for the run.

        Raises:
            UserError: There is none in the store.
        """
        self._store = store
        self._request = require_request(store)
        self._plan: Plan | None = None
        self._footers: dict[str, PartFooter | None] = {}

    def read(self) -> dict[str, Any]:
        """Tell how far it is now."""
        store = self._store
        found: dict[str, Any] = {"uri": store.uri, "asked_sha": self._request.asked_sha}
        self._plan = plan = self._plan or read_plan(store)
        if plan is None:
            return {**found, "stage": "extracting"}
        found |= {"plan_sha": plan.sha, "n_chunks": len(plan.chunks)}
        found |= self._count(plan)
        manifest = read_latest(store)
        retries = read_retries(store, plan.sha)
        if n_open := count_open_shares(store, retries):
            return {**found, "stage": "retrying", "n_retry_parts_to_come": n_open}
        if manifest is not None and len(manifest.retry_lists) == len(retries):
            return {
                **_settle(found, manifest),
                "stage": "done",
                "manifest": layout.manifest_key(manifest.revision),
                "counts": manifest.counts,
            }
        stage = "generating" if found["n_chunks_done"] < len(plan.chunks) else "assembling"
        return {**found, "stage": stage}

    def _count(self, plan: Plan) -> dict[str, Any]:
        """Add up the footers of the parts that are there, and what the journals here hold."""
        parts, n_damaged = self._read_parts(plan)
        totals = SpoolCounts()
        for footer in parts.values():
            for status in _STATUSES:
                totals.statuses[status] += getattr(footer, f"n_{status}")
            totals.failures.update(footer.failures)
            totals.n_output_tokens += footer.n_output_tokens
        n_published = totals.statuses.total()
        spool = read_settings().spool_dir
        for chunk in plan.chunks:
            if chunk.id not in parts:
                count_spool(spool_folder(spool, plan.sha, chunk.id), totals)
        counts: dict[str, Any] = {
            "n_chunks_done": len(parts),
            "n_conversations": plan.n_prompts * plan.n_samples,
            "n_done": totals.statuses.total(),
            **{f"n_{status}": totals.statuses[status] for status in _STATUSES},
            "n_output_tokens": totals.n_output_tokens,
            "n_in_journals": totals.statuses.total() - n_published,
        }
        if totals.failures:
            counts["failures"] = dict(totals.failures.most_common())
        return {**counts, "n_parts_damaged": n_damaged} if n_damaged else counts

    def _read_parts(self, plan: Plan) -> tuple[dict[int, PartFooter], int]:
        """Read the footers of the plan's parts, the highest revision of each that is whole."""
        best: dict[int, tuple[int, PartFooter]] = {}
        n_damaged = 0
        for stat in self._store.list("data/"):
            place = layout.parse_data_key(stat.key)
            if place is None:
                continue
            chunk_id, revision = place
            if stat.key not in self._footers:
                try:
                    header, footer = part.peek(self._store, stat.key)
                except CorruptPart:
                    n_damaged += 1
                    continue
                self._footers[stat.key] = footer if header.plan_sha == plan.sha else None
            kept = self._footers[stat.key]
            if kept is not None and (chunk_id not in best or best[chunk_id][0] < revision):
                best[chunk_id] = (revision, kept)
        return {chunk_id: footer for chunk_id, (_, footer) in best.items()}, n_damaged


def _settle(found: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """Put the manifest's counts in the place of the chunks': what a retry has mended is no loss."""
    failures: Counter[str] = Counter()
    for answered in (*manifest.parts, *manifest.retries):
        failures.update(answered.footer.failures)
    for gone in manifest.superseded.values():
        failures.subtract(gone.failures)
    settled = {
        name: manifest.counts.get(name, told) for name, told in found.items() if name != "failures"
    }
    left = {kind: n for kind, n in failures.most_common() if n > 0}
    return {**settled, "failures": left} if left else settled


def count_open_shares(store: ArtifactStore, retries: Sequence[RetryList]) -> int:
    """Count the parts that retries lack."""
    if not retries:
        return 0
    places = (layout.parse_part_key(stat.key) for stat in store.list("data/"))
    there = {(place.retry, place.number) for place in places if place is not None}
    shares = [share for retry in retries for share in split_retry(retry)]
    return sum((share.retry, share.id) not in there for share in shares)


class Pace:
    """How fast a run is, from one look to the next."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing seen."""
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._marks: deque[tuple[float, int]] = deque()

    def add_to(self, found: dict[str, Any]) -> dict[str, Any]:
        """Give a look with its speeds and what is left, once two looks were had."""
        if found["stage"] != "generating":
            return found
        now, n_tokens = self._clock(), int(found["n_output_tokens"])
        self._first = self._first or (now, n_tokens)
        self._marks.append((now, n_tokens))
        while len(self._marks) > 1 and now - self._marks[0][0] > _NOW_SECONDS:
            self._marks.popleft()
        average = _measure(self._first, (now, n_tokens))
        speed = _measure(self._marks[0], (now, n_tokens))
        n_done = int(found["n_done"])
        eta = estimate_end(
            n_left=found["n_conversations"] - n_done,
            n_made=n_done,
            n_tokens=n_tokens,
            sum_squared=0,
            speeds=(average, speed),
        )
        paced = {
            **found,
            "tokens_per_second_now": round(speed),
            "tokens_per_second_watched": round(average),
        }
        if eta is None:
            return paced
        seconds = [round(eta.low_seconds), round(eta.high_seconds)]
        return {**paced, "seconds_left": seconds, "left": f"{describe_eta(eta)} ({eta.basis})"}


def describe_status(found: dict[str, Any]) -> RenderableType:
    """Lay the status out; the counts of a finished run stand beside the others."""
    values = {key: value for key, value in found.items() if key not in {"counts", "seconds_left"}}
    values |= found.get("counts", {})
    rows = [
        (key.removeprefix("n_").replace("_", " "), _show(value)) for key, value in values.items()
    ]
    return table(("", ""), rows)


def _repeat(
    reader: StatusReader,
    pace: Pace,
    every_seconds: float,
    show: Callable[[dict[str, Any]], object],
) -> dict[str, Any]:
    while True:
        found = pace.add_to(reader.read())
        if found["stage"] == "done":
            return found
        show(found)
        time.sleep(every_seconds)


def _measure(then: tuple[float, int], now: tuple[float, int]) -> float:
    return max(0, now[1] - then[1]) / (now[0] - then[0]) if now[0] > then[0] else 0.0


def _in_one_line(found: dict[str, Any]) -> str:
    if "n_done" not in found:
        return str(found["stage"])
    line = (
        f"{found['stage']}: {found['n_done']:,}/{found['n_conversations']:,} conversations, "
        f"{found['n_failed']:,} failed, {found['n_chunks_done']:,}/{found['n_chunks']:,} chunks, "
        f"{found['n_output_tokens']:,} tokens"
    )
    return f"{line}, {found['left']}" if "left" in found else line


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_show(n)}" for name, n in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
