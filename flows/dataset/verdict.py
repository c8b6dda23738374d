"""Whether a run is whole: every object that its newest manifest names, held against it.

Enters: a prefix, or a root with runs below it. Leaves: a verdict a run. Nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.markup import escape

from flows.dataset.inspect import Place, iter_folders, open_prefix
from tasks.errors import UserError
from tasks.storage.config import StoreConfig
from tasks.storage.layout import request_key
from tasks.storage.manifest import list_revisions
from tasks.storage.store import ArtifactStore, S3Credentials, open_store
from tasks.storage.verify import verify_dataset

_MOST_NAMED = 5
_SHARE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(%?)")


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """What verification says of one run among several.

    Attributes:
        uri: Its prefix.
        stage: `unfinished`: it has no manifest yet, which is no fault.
        n_objects: Objects that its newest manifest names.
        problems: Each names the object and what to do.
    """

    uri: str
    stage: Literal["whole", "faulty", "unfinished"]
    n_objects: int = 0
    problems: tuple[str, ...] = ()

    def describe(self) -> str:
        """Say it in one line."""
        match self.stage:
            case "unfinished":
                told = "no manifest yet; `draftmill status` tells how far it is"
            case "whole":
                told = f"{self.n_objects:,} objects are what the manifest says"
            case "faulty":
                told = f"{len(self.problems):,} faults"
        return f"{self.stage}: {self.uri}: {told}"

    def tabulate(self) -> dict[str, Any]:
        """Give it as a row of a table that people read."""
        return {
            "run": self.uri,
            "verdict": self.stage,
            "objects": self.n_objects,
            "faults": len(self.problems),
            "first of them": " ".join(self.problems[:_MOST_NAMED]),
        }


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


def list_prefixes(place: Place) -> Sequence[StoreConfig]:
    """List where runs may lie: at a root itself, and below it those over one source."""
    return [place.store, *(store for _, store in iter_folders(place) if store is not None)]


def verify_run(
    config: StoreConfig, credentials: S3Credentials | None, read_data_share: float
) -> RunVerdict | None:
    """Verify the run at a prefix; None where nothing was asked for there."""
    with closing(open_store(config, credentials)) as store:
        if not list_revisions(store):
            is_begun = store.head(request_key()) is not None
            return RunVerdict(store.uri, "unfinished") if is_begun else None
        verdict = verify_dataset(store, read_data_share=read_data_share)
        stage: Literal["whole", "faulty"] = "whole" if verdict.ok else "faulty"
        return RunVerdict(store.uri, stage, verdict.n_objects, verdict.problems)


def describe_verdict(found: dict[str, Any]) -> RenderableType:
    """Say whether the run is whole, and name each fault."""
    notes = [f"note: {note}" for note in found["notes"]]
    if found["ok"]:
        whole = f"whole: {found['n_objects']:,} objects are what the manifest says"
        return Group(*(escape(line) for line in (whole, *notes)))
    head = f"{len(found['problems'])} faults in {found['uri']}:"
    lines = (head, *(f"  {problem}" for problem in found["problems"]), *notes)
    return Group(*(escape(line) for line in lines))
