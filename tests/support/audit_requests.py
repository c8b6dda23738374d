"""The judge of what was asked: a simulator's request log against what was kept at each kill.

Enters: the log's lines, and for each kill its time and the requests whose answers were on the disk
or in the store then. Leaves: how many answers each kill cost, or an AssertionError. Like audit.py
it knows nothing of our code: journals are read as lines of JSON, parts as zstd.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.audit import read_part

# Ends of a request that was sent after the kill; one that the kill cut off is "disconnected".
_REACHED = ("completed", "dropped", "error_500")


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: when, what had been kept by then, and what it may have cost besides.

    Attributes:
        at: Seconds since the epoch, after the process had ended.
        kept: The requests (by their prompt's hash) whose answers are in journals and parts.
        n_allowed: Answers that may be lost: those in flight, or more where the test took them.
    """

    at: float
    kept: frozenset[str]
    n_allowed: int


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read a request log; a line being written is left out, and so are one-token probes."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [line for line in map(json.loads, lines) if line["n_tokens"] != 1]


def read_kept(spool: Path, parts: Iterable[Path]) -> frozenset[str]:
    """Name the requests whose answers stand whole in a journal or a part."""
    kept = set()
    for path in spool.rglob("*.jsonl"):
        for line in path.read_text(errors="replace").split("\n")[:-1]:
            kept |= set(_name_turns(json.loads(line)))
    for path in parts:
        for row in read_part(path)[1:-1]:
            kept |= set(_name_turns(row))
    return frozenset(kept)


def _name_turns(entry: dict[str, Any]) -> Iterator[str]:
    turns = entry.get("completions") or ([entry["turn"]] if "turn" in entry else [])
    for turn in turns:
        ids = array("i", turn["prompt_token_ids"])
        yield blake2b(ids.tobytes(), digest_size=8).hexdigest()


def judge_kills(log: Sequence[dict[str, Any]], kills: Sequence[Kill]) -> list[int]:
    """Say how many answers each kill lost; what was kept at a kill was not asked for again.

    An answer is lost where a server had given it, and neither a journal nor a part held it when
    the process was dead. What the test itself took away is not in `kept`.
    """
    ends = [kill.at for kill in kills[1:]] + [float("inf")]
    lost = []
    since = 0.0
    for kill, end in zip(kills, ends, strict=True):
        before = {
            line["prompt_hash"]
            for line in log
            if since < line["time"] <= kill.at and line["outcome"] == "completed"
        }
        after = {
            line["prompt_hash"]
            for line in log
            if kill.at < line["time"] <= end and line["outcome"] in _REACHED
        }
        again = kill.kept & after
        assert not again, f"{len(again)} answers that were kept were asked for again"
        n_lost = len(before - kill.kept)
        assert n_lost <= kill.n_allowed, f"{n_lost} answers were lost, {kill.n_allowed} allowed"
        lost.append(n_lost)
        since = kill.at
    return lost


def count_twice(log: Sequence[dict[str, Any]], kills: Sequence[Kill]) -> int:
    """Count the answers had again; each must have a kill between it and the one before it."""
    times: dict[str, list[float]] = {}
    for line in log:
        if line["outcome"] == "completed":
            times.setdefault(line["prompt_hash"], []).append(line["time"])
    n_twice = 0
    for name, came in times.items():
        came.sort()
        for first, second in pairwise(came):
            n_twice += 1
            assert any(first <= kill.at <= second for kill in kills), (
                f"{name} was asked for twice within one run"
            )
    return n_twice
