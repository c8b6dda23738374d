"""Bad answers asked for anew: journals that a gate condemns are set aside, and kept.

Enters: a chunk's journals and the gates. Leaves: the same journals, or an empty spool beside a
folder that keeps them. It exists because the first terminal outcome wins: without it, answers that
stopped a run would stop it again for ever, however well the servers were mended.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from tasks.completions.config import GatesConfig
from tasks.completions.journal import Replay
from tasks.completions.quality import GateTally
from tasks.completions.record import Outcome

_log = logging.getLogger(__name__)
_decode = msgspec.json.Decoder(Outcome).decode


def set_condemned_aside(folder: Path, gates: GatesConfig, *, thinking: bool) -> int:
    """Set a chunk's journals aside where a gate of `gates.redo` is past its threshold in them.

    Journals that pass stay, so that a run which is killed while it mends loses nothing either.
    Those that another process holds are its own.

    Args:
        folder: The chunk's journals; they move to `<folder>.aside/`.
        gates: Thresholds, and which of them condemn.
        thinking: Whether the model was asked to think.

    Returns:
        How many outcomes were set aside.
    """
    if not gates.redo:
        return 0
    with Replay(folder) as replay:
        tally = GateTally(gates, thinking=thinking)
        for place in replay.rows.values():
            tally.add(_decode(place.read()))
        if not any(verdict.gate in gates.redo for verdict in tally.judge()):
            return 0
        aside = folder.with_name(f"{folder.name}.aside")
        aside.mkdir(mode=0o700, exist_ok=True)
        for path in replay.paths:
            path.rename(aside / path.name)
        _log.warning("%d outcomes are set aside in %s and asked for anew", len(replay.rows), aside)
        return len(replay.rows)
