"""Chance that is fixed by the prompt.

Enters: the name of a prompt, a seed and the number of the sample. Leaves: a stream of numbers, the
same on every server. It exists because seeding Python's generator costs more than an answer.
"""

from __future__ import annotations

from hashlib import blake2b


class Draws:
    """Numbers fixed by the prompt: a hash of the prompt's name, the seed and a label."""

    def __init__(self, prompt_hash: str, seed: int, sample: int) -> None:
        self._state = int.from_bytes(
            blake2b(f"{prompt_hash}/{seed}/{sample}".encode(), digest_size=16).digest(), "little"
        )

    def below(self, limit: int) -> int:
        """Draw a whole number from 0 to limit - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) & ((1 << 128) - 1)
        return (self._state >> 80) % limit

    def unit(self) -> float:
        """Draw a number between 0 and 1, both excluded."""
        return (self.below(1 << 32) + 0.5) / (1 << 32)
