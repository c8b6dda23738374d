"""The account of one source's rows: which became what, kept as the rows pass.

Enters: verdicts on rows. Leaves: the file of rejections, the file of seen ids, and counts that add
up to the rows read. It exists so that nothing is dropped without a kind, a count and examples, and
so that a later run knows every id that this one met.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

from tasks.prompts.prompt_file import RecordWriter
from tasks.prompts.record import Refusal

N_EXAMPLES = 3
How = Literal["kept", "rejected", "unsampled"]


class Ledger:
    """Counts rows and writes what became of those that are no prompts."""

    def __init__(self, rejections: RecordWriter, seen: RecordWriter) -> None:
        self._rejections = rejections
        self._seen = seen
        self.n_rejected: Counter[str] = Counter()
        self.benchmarks: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = {}
        self.n_not_sampled = 0

    def reject(
        self, refusal: Refusal, row: int, *, own_id: str | None = None, prompt_id: str | None = None
    ) -> None:
        """Write a rejection; a prompt that was met before is not written as seen once more."""
        self.n_rejected[refusal.kind] += 1
        if refusal.benchmark is not None:
            self.benchmarks[refusal.benchmark] += 1
        examples = self.examples.setdefault(refusal.kind, [])
        if len(examples) < N_EXAMPLES:
            examples.append(own_id or f"row {row}")
        self._rejections.append(
            {
                "row": row,
                "kind": refusal.kind,
                "detail": refusal.detail,
                "own_id": own_id,
                "prompt_id": prompt_id,
            }
        )
        if prompt_id is not None and refusal.kind not in ("duplicate", "seen"):
            self.see(bytes.fromhex(prompt_id), "rejected")

    def leave(self, prompt_id: bytes) -> None:
        """Write a prompt that the quota left out."""
        self.n_not_sampled += 1
        self.see(prompt_id, "unsampled")

    def see(self, prompt_id: bytes, how: How) -> None:
        """Write an id that this run met."""
        self._seen.append({"id": prompt_id, "how": how})
