"""Bad answers asked for anew: journals that a gate condemns are set aside, and kept.

Enters: a chunk's journals and the gates. Leaves: the same journals, or an empty spool beside a
folder that keeps them. It exists because the first terminal outcome wins: without it, answers that
stopped a run would stop it again for ever, however well the servers were mended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from tasks.completions.config import GatesConfig
from tasks.completions.quality import GateTally
from tasks.completions.record import decode_outcome
from tasks.completions.replay import Replay
from tasks.completions.spool import ASIDE

_log = logging.getLogger(__name__)


def set_condemned_aside(folder: Path, gates: GatesConfig, *, thinking: bool) -> int:
    """Set a chunk's journals aside where a gate of `gates.redo` is past its threshold in them.

    Journals that pass stay, so that a run which is killed while it mends loses nothing either.
    Those that another process holds are its own.

    A gate judges however few conversations there are: what is asked for anew costs little then.

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
        tally = GateTally(gates.model_copy(update={"min_rows": 1}), thinking=thinking)
        for place in replay.rows.values():
            tally.add(decode_outcome(place.read()))
        if not any(verdict.gate in gates.redo for verdict in tally.judge()):
            return 0
        set_aside(folder, replay.paths)
        return len(replay.rows)


def set_aside(folder: Path, paths: Iterable[Path]) -> None:
    """Move a chunk's journals to `<folder>.aside/`, where they are kept and no run reads them."""
    aside = folder.with_name(folder.name + ASIDE)
    aside.mkdir(mode=0o700, exist_ok=True)
    for path in paths:
        path.rename(aside / path.name)
        _log.warning("%s is set aside in %s; its rows are asked for anew", path.name, aside)
