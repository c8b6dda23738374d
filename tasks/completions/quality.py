"""Whether answers are fit to train on, judged before a chunk's part is published.

Enters: Outcomes. Leaves: the gates that flag each, and the gates whose share is past its threshold.
Pure. It exists because days of GPU time can go into empty answers that nobody reads: a chunk that
looks wrong stops the run while it is still one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from tasks.completions.config import Gate, GatesConfig
from tasks.completions.record import Completion, Outcome
from tasks.errors import StoppedByGate

_N_SAMPLE_IDS = 5
# A loop shows in the end of an answer: pieces of its last characters stand there again and again.
_TAIL_CHARS = 4096
_PIECE_CHARS = 48
_N_PIECES = 8
_LOOP_REPEATS = 4
_SHORTEST_LOOP_CHARS = 256


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """A gate past its threshold: flagged conversations, of how many, and a few of their ids."""

    gate: Gate
    n_flagged: int
    n_judged: int
    threshold: float
    sample_ids: tuple[str, ...]
    of_what: str = "conversations"

    @property
    def share(self) -> float:
        """Share of flagged conversations."""
        return self.n_flagged / self.n_judged

    def __str__(self) -> str:
        return (
            f"{self.gate}: {self.share:.1%} of {self.n_judged} {self.of_what} "
            f"(threshold {self.threshold:.1%}), such as {', '.join(self.sample_ids)}"
        )


class GateTally:
    """Counts the flags of a chunk's conversations; one without any answer is not judged."""

    def __init__(self, config: GatesConfig, *, thinking: bool) -> None:
        """Start at zero; `thinking` is whether the model was asked to think."""
        self._config = config
        self._thinking = thinking
        self._seen: set[int] = set()
        self._ids: dict[Gate, list[str]] = {}
        self.n_judged = 0
        self.counts: dict[str, int] = dict.fromkeys(get_args(Gate), 0)

    def add(self, outcome: Outcome) -> frozenset[Gate]:
        """Judge a conversation and count its flags."""
        if not outcome.completions:
            return frozenset()
        flags = flag_outcome(
            outcome, thinking=self._thinking, tiny_mask_tokens=self._config.tiny_mask_tokens
        )
        digest = _hash_answers(outcome.completions)
        if digest in self._seen and "empty_answer" not in flags:
            flags |= {"duplicate"}
        self._seen.add(digest)
        self.n_judged += 1
        for gate in flags:
            self.counts[gate] += 1
            ids = self._ids.setdefault(gate, [])
            if len(ids) < _N_SAMPLE_IDS:
                ids.append(f"{outcome.prompt_id}#s{outcome.sample}")
        return flags

    def judge(self) -> tuple[GateVerdict, ...]:
        """Name the gates past their thresholds; none before `min_rows` conversations.

        Accepted gates are counted and never named.
        """
        return judge_counts(self._config, self.counts, self.n_judged, self._ids)


def judge_counts(
    config: GatesConfig,
    counts: Mapping[str, int],
    n_judged: int,
    sample_ids: Mapping[Gate, Sequence[str]],
    of_what: str = "conversations",
) -> tuple[GateVerdict, ...]:
    """Name the gates past their thresholds, given how many of `n_judged` each has flagged."""
    if n_judged < config.min_rows:
        return ()
    return tuple(
        GateVerdict(
            gate,
            counts[gate],
            n_judged,
            getattr(config, gate),
            tuple(sample_ids.get(gate, ())),
            of_what,
        )
        for gate in get_args(Gate)
        if gate not in config.accept and counts[gate] > getattr(config, gate) * n_judged
    )


def stop_by_gates(verdicts: Sequence[GateVerdict], where: str) -> StoppedByGate:
    """Say why the run stops, and the two ways on."""
    names = ", ".join(dict.fromkeys(verdict.gate for verdict in verdicts))
    return StoppedByGate(
        f"answers are past the threshold of: {names}",
        verdicts=tuple(map(str, verdicts)),
        where=where,
        remedy="Look at the answers named. If they are as they should be, run again with "
        f"--set 'gates.accept=[{names}]'; the answers are kept. If not, mend the servers "
        f"and run again with --set 'gates.redo=[{names}]'; what is bad is asked for anew.",
    )


def flag_outcome(outcome: Outcome, *, thinking: bool, tiny_mask_tokens: int) -> frozenset[Gate]:
    """Flag one conversation: a gate applies if any of its answers shows the fault.

    Duplicates are a matter of the whole chunk, and are not looked for here.
    """
    flags: set[Gate] = set()
    if outcome.status == "truncated":
        flags.add("truncation")
    for completion in outcome.completions:
        is_cut = completion.finish_reason == "length"
        if not is_cut and not completion.tool_calls and not completion.content.strip():
            flags.add("empty_answer")
        if thinking and not completion.reasoning.strip():
            flags.add("empty_thinking")
        if completion.usage.completion_tokens < tiny_mask_tokens:
            flags.add("tiny_mask")
        if is_looping(completion.content or completion.reasoning):
            flags.add("repetition")
    return frozenset(flags)


def is_looping(text: str) -> bool:
    """Whether the end of a text repeats itself: most pieces of it stand there four times."""
    if len(text) < _SHORTEST_LOOP_CHARS:
        return False
    tail = text[-_TAIL_CHARS:]
    step = max(1, (len(tail) - _PIECE_CHARS) // _N_PIECES)
    n_single = 0
    for at in range(0, step * _N_PIECES, step):
        if tail.count(tail[at : at + _PIECE_CHARS]) < _LOOP_REPEATS:
            n_single += 1
            # Most answers repeat nothing: half of the pieces is enough to know.
            if 2 * n_single >= _N_PIECES:
                return False
    return True


def _hash_answers(completions: list[Completion]) -> int:
    """Hash what was said, for this process only: 64 bits, and strings are hashed at C speed."""
    said: list[str] = []
    for completion in completions:
        said += (completion.reasoning, completion.content)
        # Ids of calls are drawn anew: what is called, with what, is what counts.
        said += [repr(call["function"]) for call in completion.tool_calls]
    return hash(tuple(said))
