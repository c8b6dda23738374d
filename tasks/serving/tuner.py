"""Which settings to try on a card, and which of them won.

Enters: a ServingConfig and what is known of the box; later the trials' results. Leaves: candidates
that the rules allow, one server each, and their ranking. Pure. The search goes by two rounds, since
the memory a strategy leaves decides what the rest can gain: how the batch is kept (mamba strategy,
radix cache, speculative decoding, slots), then how it is fed (prefill chunk, memory share).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.environment.compat import find_conflicts
from tasks.serving.config import ServingConfig, SpeculativeConfig
from tasks.serving.launchable import UNKNOWN, LaunchFacts, launch_choice
from tasks.serving.trial import TrialResult

_SLOT_FACTORS = (1.0, 0.5, 1.5)
_DEFAULT_SLOTS = 64
_MOST_SLOTS = 4096  # of the setting
_PREFILL_FACTORS = (1, 2)
_MEMORY_STEPS = (0.0, 0.05)
_MOST_MEMORY = 0.95
# Multi-token prediction as the target's own head does it; the field's settings.
_MTP = SpeculativeConfig(algorithm="EAGLE", num_steps=3, eagle_topk=1, num_draft_tokens=4)
# Strategy and whether the radix cache is off.
_STRATEGIES: tuple[tuple[str, bool], ...] = (
    ("no_buffer", False),
    ("no_buffer", True),
    ("extra_buffer", False),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One server's settings; `changes` is what differs from the configuration."""

    name: str
    serving: ServingConfig
    changes: dict[str, Any]


def propose_candidates(
    config: ServingConfig, facts: LaunchFacts = UNKNOWN
) -> tuple[Candidate, ...]:
    """List the first round: how the batch is kept; the configuration itself comes first."""
    slots = config.max_running_requests or config.slots or _DEFAULT_SLOTS
    keeps: list[dict[str, Any]] = [{}]
    if config.engine == "sglang":
        hybrid = config.mamba_strategy is not None or facts.hybrid is True
        strategies = [
            {"mamba_strategy": strategy, "disable_radix_cache": no_radix}
            for strategy, no_radix in _STRATEGIES
        ]
        drafts = [None, config.speculative or _MTP] if hybrid or config.speculative else [None]
        keeps += [
            {**strategy, "speculative": draft}
            for strategy, draft in itertools.product(strategies if hybrid else [{}], drafts)
        ]
    changes: list[dict[str, Any]] = [{}]
    changes += (
        {**keep, "max_running_requests": min(max(1, round(slots * factor)), _MOST_SLOTS)}
        for keep, factor in itertools.product(keeps, _SLOT_FACTORS)
    )
    return _allow(config, changes, facts)


def refine_candidate(winner: Candidate, facts: LaunchFacts = UNKNOWN) -> tuple[Candidate, ...]:
    """List the second round: how the winner of the first is fed, itself left out."""
    config = winner.serving
    if config.engine == "simulator":
        return ()
    changes = [
        {
            "chunked_prefill_size": config.chunked_prefill_size * factor,
            "mem_fraction_static": round(min(config.mem_fraction_static + step, _MOST_MEMORY), 3),
        }
        for factor, step in itertools.product(_PREFILL_FACTORS, _MEMORY_STEPS)
    ]
    refined = _allow(config, changes, facts)
    return tuple(
        Candidate(each.name, each.serving, {**winner.changes, **each.changes})
        for each in refined
        if each.serving != config
    )


def rank_results(results: Iterable[TrialResult]) -> list[TrialResult]:
    """Order results, the fastest first; of equal ones the one that retracts less; failures last."""
    return sorted(
        results,
        key=lambda each: (bool(each.error), -each.tokens_per_second, each.n_retracted, each.name),
    )


def describe_changes(changes: dict[str, Any]) -> str:
    """Name a candidate by its changes."""
    words = []
    for key, value in changes.items():
        if key == "speculative":
            words.append("MTP" if value else "no MTP")
        elif key == "disable_radix_cache":
            words.append("no radix" if value else "radix")
        elif key == "max_running_requests":
            words.append(f"{value} slots")
        elif key == "mem_fraction_static":
            words.append(f"memory {value:g}")
        elif key == "chunked_prefill_size":
            words.append(f"prefill {value}")
        else:
            words.append(str(value))
    return ", ".join(words) or "as configured"


def _allow(
    config: ServingConfig, changes: Sequence[dict[str, Any]], facts: LaunchFacts
) -> tuple[Candidate, ...]:
    """Make the candidates that differ and that the rules allow, one server each."""
    found: dict[str, Candidate] = {}
    for change in changes:
        effective = {key: value for key, value in change.items() if getattr(config, key) != value}
        serving = config.model_copy(update=effective)
        if serving.engine == "sglang" and find_conflicts(launch_choice(serving, facts)):
            continue
        name = describe_changes(change)
        found.setdefault(serving.model_dump_json(), Candidate(name, serving, effective))
    return tuple(found.values())
