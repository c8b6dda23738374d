"""The checks of what lies beyond the box: the store, its clock, and every source. Pure.

Enters: what the flow's probes told. Leaves: verdicts. A store that cannot be asked is a failure;
one that tells no time leaves the clock unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

from tasks.environment.box_facts import DiskFacts, SourceFacts, StoreFacts
from tasks.environment.record import Status, Verdict
from tasks.environment.verdicts import manual, verdict

# Signed requests are refused from 15 minutes on; leases and log lines go wrong earlier.
_SKEW_FAILS_SECONDS = 600.0
_SKEW_WARNS_SECONDS = 5.0


def judge_store(store: StoreFacts | None) -> tuple[Verdict, ...]:
    """Judge the store's probe, and our clock against the store's."""
    if store is None:
        reason = "no store is named"
        return verdict("store.create_only", "skip", reason), verdict("clock", "skip", reason)
    return _judge_create_only(store), _judge_clock(store)


def judge_source(source: SourceFacts) -> Verdict:
    """Judge whether a source is reachable at its revision, with the token accepted."""
    check = f"source.{source.key}"
    if source.error:
        status: Status = "fail" if source.is_user_fault else "unknown"
        fix = manual("correct_source", source.remedy or "Correct the source, or its token.")
        return verdict(check, status, source.error, fix=fix)
    return verdict(check, "ok", f"{source.dataset} at {source.revision[:12]}")


def judge_cache_disk(disk: DiskFacts | None, needed_gib: float | None) -> Verdict:
    """Judge the disk that downloaded datasets land on."""
    check = "cache_disk"
    if needed_gib == 0:
        return verdict(check, "skip", "every source is a local file")
    if disk is None or needed_gib is None:
        return verdict(check, "unknown", "how large the sources are is not known")
    values = {"path": disk.path, "free_gib": f"{disk.free_gib:.1f}"}
    if not disk.writable or disk.free_gib < needed_gib:
        summary = f"{disk.free_gib:.1f} GiB are free at {disk.path}, {needed_gib:.1f} are needed"
        fix = manual("cache_room", "Free some room, or point HF_HOME at a larger disk.")
        return verdict(check, "fail", summary, fix=fix, values=values)
    return verdict(check, "ok", f"{disk.free_gib:.1f} GiB are free for datasets", values=values)


def judge_surroundings(
    store: StoreFacts | None,
    sources: Sequence[SourceFacts],
    cache: DiskFacts | None,
    cache_gib: float | None,
) -> tuple[Verdict, ...]:
    """Judge all that lies beyond the box."""
    return (
        *judge_store(store),
        *(judge_source(source) for source in sources),
        judge_cache_disk(cache, cache_gib),
    )


def _judge_create_only(store: StoreFacts) -> Verdict:
    check = "store.create_only"
    if store.error:
        fix = manual("correct_store", store.remedy or "Correct the store's settings.")
        return verdict(check, "fail", store.error, fix=fix)
    if store.create_only is None:
        return verdict(check, "unknown", f"{store.uri} was not asked")
    return verdict(check, "ok", f"{store.uri} refused a second write to one key")


def _judge_clock(store: StoreFacts) -> Verdict:
    if store.uri.startswith("file:"):
        return verdict("clock", "skip", "the store is a folder, and has this machine's clock")
    if store.skew_seconds is None:
        return verdict("clock", "unknown", "the store tells no time")
    skew = abs(store.skew_seconds)
    values = {"skew_seconds": f"{store.skew_seconds:.1f}"}
    if skew >= _SKEW_WARNS_SECONDS:
        fix = manual("set_clock", "Set the clock (`timedatectl set-ntp true`).")
        summary = f"our clock is {skew:.0f} s {'ahead of' if store.skew_seconds > 0 else 'behind'} "
        summary += "the store's"
        status: Status = "fail" if skew >= _SKEW_FAILS_SECONDS else "warn"
        return verdict("clock", status, summary, fix=fix, values=values)
    return verdict("clock", "ok", f"within {skew:.1f} s of the store's", values=values)
