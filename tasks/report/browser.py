"""Samples in groups that can be browsed without a script: by gate, then by source.

Enters: ShownSamples, flagged ones first. Leaves: groups with anchors of our own making, as many as
fit into the page. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from tasks.report.record import ShownSample

MOST_BYTES = 3_500_000
"""What samples may take of a page that stays below 5 MB."""

_EXCERPT_CHARS = 110
_MARKUP_BYTES = 900


def group_samples(samples: Iterable[ShownSample]) -> tuple[list[dict[str, Any]], int]:
    """Group samples, flagged ones first; say how many did not fit.

    A sample of several flags is found under the rarest of them.
    """
    listed = list(samples)
    n_by_flag = Counter(flag for sample in listed for flag in sample.flags)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    n_bytes = n_left_out = 0
    for number, sample in enumerate(listed, start=1):
        n_bytes += _weigh(sample)
        if n_bytes > MOST_BYTES:
            n_left_out = len(listed) - number + 1
            break
        rarest = min(sample.flags, key=lambda flag: (n_by_flag[flag], flag), default=None)
        place = ("source", sample.source) if rarest is None else ("flag", rarest)
        shown = {"sample": sample, "anchor": f"s{number}", "excerpt": _excerpt(sample)}
        groups.setdefault(place, []).append(shown)
    ordered = sorted(groups.items(), key=lambda item: (item[0][0] != "flag", item[0][1]))
    return [
        {"anchor": f"g{number}", "is_flag": kind == "flag", "name": name, "samples": shown}
        for number, ((kind, name), shown) in enumerate(ordered, start=1)
    ], n_left_out


def keep_conversations(samples: Iterable[ShownSample], most: int) -> Iterator[ShownSample]:
    """Keep the answers of the first conversations of each source."""
    taken: dict[str, set[str]] = {}
    for sample in samples:
        conversations = taken.setdefault(sample.source, set())
        name = sample.id.rpartition("#")[0] or sample.id
        if name in conversations or len(conversations) < most:
            conversations.add(name)
            yield sample


def _excerpt(sample: ShownSample) -> str:
    """Give the beginning of what the target said."""
    said = " ".join(span.text for span in sample.spans if span.supervised)
    words = " ".join(said[: 4 * _EXCERPT_CHARS].split())
    return words if len(words) <= _EXCERPT_CHARS else f"{words[:_EXCERPT_CHARS]}…"


def _weigh(sample: ShownSample) -> int:
    names = (sample.id, sample.source, sample.domain, sample.finish_reason, *sample.flags)
    text = "".join((*names, *(span.text for span in sample.spans)))
    return len(escape(text).encode("utf-8", "replace")) + _MARKUP_BYTES
