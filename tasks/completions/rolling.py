"""What no single chunk shows: the latest conversations of the run together, and its failures.

Enters: footers of published parts, and each outcome as it is counted, with its flags. Leaves: the
gates whose share of the latest conversations is past its threshold, and whether too many of the
run's conversations failed. Pure. It exists because a fleet that goes bad in mid-run spoils the end
of one chunk and the beginning of the next, and neither is past a threshold by itself; and because
what a chunk may lose adds up over hundreds of chunks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.quality import GateVerdict, judge_counts
from tasks.errors import RunBudgetExceeded
from tasks.storage.record import PartReceipt, Superseded

_N_SAMPLE_IDS = 5
_NO_FLAGS: Mapping[str, int] = {}

Whose = tuple[int, int]
"""The retry (0: none) and the chunk, or the share of the retry."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """Neighbours in the window: one conversation, or the whole of a published part."""

    whose: Whose
    n_judged: int
    flags: Mapping[str, int]
    name: str


class RunWatch:
    """Watches over all chunks of a run.

    What a `gates.redo` flags in answers of an earlier run does not count here: it is about to be
    asked for anew.
    """

    def __init__(self, gates: GatesConfig, *, n_conversations: int, failure_budget: float) -> None:
        """Take the thresholds, and how many of the run's conversations may fail."""
        self._gates = gates
        self._n_conversations = n_conversations
        self._failure_budget = failure_budget
        self._entries: deque[_Entry] = deque()
        self._n_judged = 0
        self._counts: Counter[str] = Counter()
        self._n_failed: Counter[Whose] = Counter()

    def recall(
        self, parts: Iterable[PartReceipt], superseded: Mapping[str, Superseded] | None = None
    ) -> None:
        """Take the parts that are published, in the order of the chunks, those of retries last.

        Args:
            parts: Of chunks and of retries.
            superseded: What of each part no longer counts, by its key.
        """
        for part in sorted(parts, key=lambda part: (part.header.retry, part.header.chunk_id)):
            footer, whose = part.footer, (part.header.retry, part.header.chunk_id)
            gone = (superseded or {}).get(part.key, Superseded())
            n_failed = max(0, footer.n_failed - gone.n_failed)
            self._n_failed[whose] = n_failed
            left = {gate: n - gone.gates.get(gate, 0) for gate, n in footer.gates.items()}
            flags = {g: n for g, n in left.items() if n > 0 and g not in self._gates.redo}
            n_rows = footer.n_rows - gone.n_rows
            self._push(_Entry(whose, max(0, n_rows - n_failed), flags, part.key))

    def begin(self, chunk_id: int) -> None:
        """Forget what was counted of a chunk: it is taken up from its journals."""
        whose = (0, chunk_id)
        self._n_failed[whose] = 0
        for entry in self._entries:
            if entry.whose == whose:
                self._count(entry, -1)
        self._entries = deque(entry for entry in self._entries if entry.whose != whose)

    def add(
        self, chunk_id: int, name: str, flags: Collection[Gate], *, replayed: bool = False
    ) -> None:
        """Count a conversation that has an answer."""
        if replayed:
            flags = [gate for gate in flags if gate not in self._gates.redo]
        self._push(_Entry((0, chunk_id), 1, dict.fromkeys(flags, 1) if flags else _NO_FLAGS, name))

    def add_failed(self, chunk_id: int) -> None:
        """Count a conversation that has none.

        Raises:
            RunBudgetExceeded: Too many of the run's conversations have none.
        """
        self._n_failed[0, chunk_id] += 1
        n_failed = self._n_failed.total()
        if n_failed > self._failure_budget * self._n_conversations:
            raise RunBudgetExceeded(
                f"{n_failed} of the run's {self._n_conversations} conversations have no answer; "
                f"the budget is {self._failure_budget:.1%}",
                where=f"chunk {chunk_id}",
                remedy="Mend the servers and run again: failures of servers and network are tried "
                "anew. Or raise generation.run_failure_budget.",
            )

    def judge(self) -> tuple[GateVerdict, ...]:
        """Name the gates that the latest conversations of the run are past."""
        ids: dict[Gate, list[str]] = {}
        for gate in get_args(Gate):
            names = [entry.name for entry in self._entries if gate in entry.flags]
            ids[gate] = names[-_N_SAMPLE_IDS:]
        of_what = "latest conversations of the run"
        return judge_counts(self._gates, self._counts, self._n_judged, ids, of_what)

    def _push(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._count(entry, 1)
        while self._n_judged - self._entries[0].n_judged >= self._gates.window:
            self._count(self._entries.popleft(), -1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._n_judged += sign * entry.n_judged
        for gate, n_flagged in entry.flags.items():
            self._counts[gate] += sign * n_flagged
