"""Which samples a report shows: those that gates flag first, of each gate some, then some a source.

Enters: the store and the manifest of a run. Leaves: ShownSamples. It exists because what is worth
looking at is rare: of each gate the first few conversations are searched for in the parts whose
footers say that they hold some, and no other part is decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import get_args

from tasks.chat.template import ChatTemplate
from tasks.completions.config import Gate, GatesConfig
from tasks.completions.quality import GateTally
from tasks.completions.record import decode_outcome
from tasks.report.record import ShownSample
from tasks.report.spans import show_sample
from tasks.storage.part import iter_rows
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore
from tasks.tokens.asked import AnsweredPart
from tasks.tokens.assemble import iter_samples
from tasks.tokens.record import Sample, SamplesReceipt, name_conversation

FLAGGED_A_GATE = 24
_PLAIN_IN_ALL = 160
_MOST_A_SOURCE = 20
_LEAST_A_SOURCE = 4
# The canary holds some of every source; where it is small, the next parts fill up.
_PARTS_READ = 3
# A conversation of many turns does not fill the page alone.
_TURNS_SHOWN = 3

Flags = dict[str, tuple[str, ...]]
"""Conversations (`prompt#s0`) to the gates that flag them."""


def pick_samples(
    store: ArtifactStore,
    manifest: Manifest,
    parts: Iterable[AnsweredPart],
    gates: GatesConfig,
    template: ChatTemplate,
) -> tuple[ShownSample, ...]:
    """Pick a few hundred samples, flagged ones first, then some of every source.

    Raises:
        CorruptPart: A stored object is not what the manifest says.
    """
    receipts = [SamplesReceipt.model_validate(made) for made in manifest.samples]
    by_data_key = {receipt.data_key: receipt for receipt in receipts}
    flagged: list[ShownSample] = []
    thinking = bool(manifest.plan["thinking"])
    listed = list(parts)
    for part, flags in _find_flagged(store, listed, gates, thinking=thinking):
        flagged += _show(store, by_data_key[part.receipt.key], flags, template)
    shown = {sample.id for sample in flagged}
    room = _PLAIN_IN_ALL // max(1, len(manifest.plan["extracted"]))
    plain = pick_plain(
        store,
        receipts[:_PARTS_READ],
        template,
        most_a_source=max(_LEAST_A_SOURCE, min(_MOST_A_SOURCE, room)),
        passing_over={part.receipt.key: set(map(_name, part.superseded)) for part in listed},
    )
    return (*flagged, *(sample for sample in plain if sample.id not in shown))


def pick_plain(
    store: ArtifactStore,
    receipts: Iterable[SamplesReceipt],
    template: ChatTemplate,
    *,
    most_a_source: int,
    passing_over: Mapping[str, Collection[str]] | None = None,
) -> tuple[ShownSample, ...]:
    """Show the samples of the first conversations of each source.

    Args:
        store: The run's store.
        receipts: Of the samples to pick from; the canary's, the first, hold some of every source.
        template: Of the target.
        most_a_source: Conversations of a source.
        passing_over: Conversations that no longer count, by the key of their data part: a retry's
            part answers conversations of the same names.
    """
    taken: dict[str, Counter[str]] = {}
    shown: list[ShownSample] = []
    for receipt in receipts:
        gone = (passing_over or {}).get(receipt.data_key, ())
        for sample in iter_samples(store, receipt):
            conversations = taken.setdefault(sample.source, Counter())
            name = name_conversation(sample.id)
            is_new = name not in conversations
            if name in gone or (is_new and len(conversations) >= most_a_source):
                continue
            conversations[name] += 1
            if conversations[name] <= _TURNS_SHOWN:
                shown.append(_show_one(sample, template))
    return tuple(shown)


def _find_flagged(
    store: ArtifactStore, parts: Iterable[AnsweredPart], gates: GatesConfig, *, thinking: bool
) -> Iterable[tuple[AnsweredPart, Flags]]:
    """Search for the first conversations of each gate, part by part."""
    found: Counter[str] = Counter()
    for part in parts:
        told = part.receipt.footer.gates
        if all(found[gate] >= FLAGGED_A_GATE or not told.get(gate) for gate in get_args(Gate)):
            continue
        tally = GateTally(gates, thinking=thinking)
        flags: Flags = {}
        for outcome in map(decode_outcome, iter_rows(store, part.receipt.key)):
            by = tally.add(outcome)
            conversation = (outcome.prompt_id, outcome.sample)
            if conversation in part.superseded:
                continue
            if any(found[gate] < FLAGGED_A_GATE for gate in by):
                flags[_name(conversation)] = tuple(sorted(by))
                found.update(by)
        if flags:
            yield part, flags


def _show(
    store: ArtifactStore,
    receipt: SamplesReceipt,
    flags: Mapping[str, tuple[str, ...]],
    template: ChatTemplate,
) -> Iterable[ShownSample]:
    n_turns: Counter[str] = Counter()
    for sample in iter_samples(store, receipt):
        name = name_conversation(sample.id)
        if name in flags and n_turns[name] < _TURNS_SHOWN:
            n_turns[name] += 1
            yield _show_one(sample, template, flags[name])


def _show_one(sample: Sample, template: ChatTemplate, flags: tuple[str, ...] = ()) -> ShownSample:
    return show_sample(
        template,
        row_id=sample.id,
        source=sample.source,
        domain=sample.domain,
        finish_reason=sample.finish_reason,
        input_ids=sample.input_ids.tolist(),
        loss_mask=sample.loss_mask.tolist(),
    ).model_copy(update={"flags": flags})


def _name(conversation: tuple[str, int]) -> str:
    return f"{conversation[0]}#s{conversation[1]}"
