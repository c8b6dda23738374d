"""Whether a run is whole: every object that its newest manifest names, held against it."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.inspect import open_prefix
from tasks.errors import UserError
from tasks.storage.layout import request_key
from tasks.storage.manifest import list_revisions
from tasks.storage.store import ArtifactStore
from tasks.storage.verify import verify_dataset

_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%?)")


def parse_share(text: str) -> float:
    """Read a share such as `5%` or `0.05`.

    Raises:
        UserError: It is none between 0 and 1.
    """
    match = _SHARE.fullmatch(text)
    share = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= share <= 1:
        raise UserError(
            f"{text!r} is no share.", where="--read-data", remedy="Write 5%, 0.05, 1 or 100%."
        )
    return share


def verify_prefix(prefix: str, read_data_share: float) -> dict[str, Any]:
    """Hold every object of a run against its newest manifest.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.
        read_data_share: Share of the objects that are read in full; of the others only the size,
            and a part's ends, are checked.

    Raises:
        UserError: There is no run at the prefix.
    """
    with closing(open_prefix(prefix)) as store:
        return judge_store(store, read_data_share)


def judge_store(store: ArtifactStore, read_data_share: float) -> dict[str, Any]:
    """Verify an opened store.

    Raises:
        UserError: There is no run at the prefix.
    """
    if store.head(request_key()) is None and not list_revisions(store):
        raise UserError(
            "there is no run at this prefix",
            where=store.uri,
            remedy="Give the prefix that `draftmill run` printed, or the configuration.",
        )
    verdict = verify_dataset(store, read_data_share=read_data_share)
    return {"uri": store.uri, **verdict.model_dump(mode="json")}


def describe_verdict(found: dict[str, Any]) -> RenderableType:
    """Say whether the run is whole, and name each fault."""
    notes = [f"note: {note}" for note in found["notes"]]
    if found["ok"]:
        whole = f"whole: {found['n_objects']:,} objects are what the manifest says"
        return Group(*(escape(line) for line in (whole, *notes)))
    head = f"{len(found['problems'])} faults in {found['uri']}:"
    lines = (head, *(f"  {problem}" for problem in found["problems"]), *notes)
    return Group(*(escape(line) for line in lines))
