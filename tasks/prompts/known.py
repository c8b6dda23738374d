"""What earlier runs and the base dataset have already; looked up by prompt.

Enters: prompt ids of earlier runs, and of the base dataset ids and rendered prompts. Leaves:
whether a prompt is new. It exists so that no GPU time goes into a prompt that was answered before,
and so that a new revision of a source costs only its new rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class KnownPrompts:
    """Sets of hashes: ids of 16 bytes, rendered prompts of 8.

    Attributes:
        answered: Ids of prompts that an earlier run planned, whatever their source.
        seen: By source: ids that an earlier run met there and refused or left unsampled too.
        in_base: Ids of prompts with a sample in the base dataset.
        rendered: `hash_ids` of the base dataset's prompts, where its samples have other ids.
    """

    answered: frozenset[bytes] = frozenset()
    seen: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    in_base: frozenset[bytes] = frozenset()
    rendered: frozenset[bytes] = frozenset()


NOTHING_KNOWN = KnownPrompts()


def hash_ids(prompt_token_ids: Sequence[int]) -> bytes:
    """Hash a rendered prompt, shape [n_prompt_tokens], to 8 bytes (blake2b over int32)."""
    data = np.asarray(prompt_token_ids, dtype=np.int32).tobytes()
    return hashlib.blake2b(data, digest_size=8).digest()
