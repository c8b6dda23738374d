"""The identities that the counts of a run must hold: nothing is lost in silence, nothing doubled.

Enters: the counts of a manifest. Leaves: each identity with its two sides. It exists so that the
run that is stopped by a mismatch and the page that shows the accounts use the same sums. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict


class Balance(BaseModel):
    """Two sums over a run's counts that must be equal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    left: int
    right: int

    @property
    def holds(self) -> bool:
        """Whether they are."""
        return self.left == self.right


# Left and right of each identity, as names of counts.
_IDENTITIES = (
    (
        "rows read = prompts + rejected + not sampled + duplicates",
        ("n_source_rows",),
        ("n_prompts", "n_rejected", "n_not_sampled", "n_duplicates"),
    ),
    (
        "conversations = completed + truncated + partial + failed",
        ("n_conversations",),
        ("n_completed", "n_truncated", "n_partial", "n_failed"),
    ),
    ("generations = samples + dropped", ("n_generations",), ("n_samples", "n_dropped")),
    (
        "dataset rows + dropped as the base's prompts = base rows + samples",
        ("n_dataset_rows", "n_dropped_prompts"),
        ("n_base_rows", "n_samples"),
    ),
)


def balance(counts: Mapping[str, int], n_asked: int) -> list[Balance]:
    """Hold the counts against each other; identities of counts that are not there are left out.

    Args:
        counts: By the manifest's names.
        n_asked: Conversations that the plan asks for.
    """
    sums = [
        Balance(
            name=name,
            left=sum(counts[key] for key in left),
            right=sum(counts[key] for key in right),
        )
        for name, left, right in _IDENTITIES
        if all(key in counts for key in (*left, *right))
    ]
    if "n_conversations" in counts:
        name = "conversations = prompts x samples"
        sums.insert(1, Balance(name=name, left=counts["n_conversations"], right=n_asked))
    return sums
