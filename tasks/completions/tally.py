"""What a chunk's outcomes add up to.

Enters: Outcomes, one after the other. Leaves: the counts of the part's footer, and the gates'
verdicts. Pure. It exists so that counts are made once, where each outcome passes by, whether it
was generated now or read again from a journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.quality import GateTally
from tasks.completions.record import Outcome


class ChunkTally:
    """Running counts of one chunk."""

    def __init__(self, gates: GatesConfig, *, thinking: bool) -> None:
        """Start at zero."""
        self.gates = GateTally(gates, thinking=thinking)
        self.statuses: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.endpoints: set[str] = set()
        self.n_generations = 0
        self.n_prompt_tokens = 0
        self.n_output_tokens = 0

    @property
    def n_done(self) -> int:
        """Conversations counted, failed ones included."""
        return self.statuses.total()

    def add(self, outcome: Outcome) -> frozenset[Gate]:
        """Count one conversation, and give the gates that flag it."""
        self.statuses[outcome.status] += 1
        if outcome.failure is not None:
            self.failures[outcome.failure.kind] += 1
        for completion in outcome.completions:
            self.n_generations += 1
            self.n_prompt_tokens += completion.usage.prompt_tokens
            self.n_output_tokens += completion.usage.completion_tokens
            self.endpoints.add(completion.endpoint)
        return self.gates.add(outcome)

    def to_footer(self, versions: Mapping[str, str], slots: Mapping[str, int]) -> dict[str, object]:
        """Give the fields of a PartFooter but for `rows_sha256`.

        Args:
            versions: Server version by base url; a server of an earlier run may be unknown.
            slots: Requests at once by base url; a server that has gone is left out.
        """
        return {
            "n_rows": self.n_done,
            "n_completed": self.statuses["completed"],
            "n_truncated": self.statuses["truncated"],
            "n_partial": self.statuses["partial"],
            "n_failed": self.statuses["failed"],
            "n_generations": self.n_generations,
            "n_prompt_tokens": self.n_prompt_tokens,
            "n_output_tokens": self.n_output_tokens,
            "failures": dict(sorted(self.failures.items())),
            "gates": dict(self.gates.counts),
            "server_versions": {
                url: versions.get(url, "unknown") for url in sorted(self.endpoints)
            },
            "server_slots": {url: slots[url] for url in sorted(self.endpoints) if url in slots},
        }
