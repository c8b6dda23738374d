"""What assembly reads of an outcome: ids unparsed, texts only where they are asked for. Pure.

Enters: one JSON line of a data part. Leaves: a Row for every sample, or a whole Completion for the
few whose text is looked at. It exists for speed: decoding all texts would cost more than the ids.
"""

from __future__ import annotations

import msgspec

from tasks.completions.record import Completion, Outcome


class Turn(msgspec.Struct):
    """What of a Completion every sample needs; the texts are skipped unparsed."""

    generation: int
    prompt_token_ids: msgspec.Raw
    output_token_ids: msgspec.Raw
    token_source: str
    finish_reason: str


class Row(msgspec.Struct):
    """What of an Outcome every sample needs."""

    prompt_id: str
    sample: int
    completions: list[Turn]


decode_row = msgspec.json.Decoder(Row).decode
_decode_outcome = msgspec.json.Decoder(Outcome).decode


def find_completion(line: bytes, generation: int) -> Completion:
    """Decode one completion of an outcome in full, its texts included."""
    completions = _decode_outcome(line).completions
    return next(one for one in completions if one.generation == generation)
