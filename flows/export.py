"""Writes a finished dataset in the form that a trainer reads, into a local folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from flows.inspect import open_prefix
from tasks.errors import KeyTaken, UserError
from tasks.prompts.record import Plan
from tasks.storage.manifest import read_latest
from tasks.tokens.export import export_messages, export_specforge

Form = Literal["specforge", "messages"]


def export_dataset(prefix: str, form: Form, folder: Path) -> dict[str, Any]:
    """Export the newest revision.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.
        form: specforge (`input_ids`, `loss_mask`; speculators reads it too) or messages.
        folder: Where to; must be absent or empty.

    Raises:
        UserError: There is no finished dataset at the prefix, or the folder is not empty.
    """
    with closing(open_prefix(prefix)) as store:
        manifest = read_latest(store)
        if manifest is None:
            raise UserError(
                "there is no finished dataset at this prefix",
                where=store.uri,
                remedy="Let the run end (`draftmill status` tells how far it is), then export.",
            )
        try:
            if form == "specforge":
                files = export_specforge(store, manifest.shards, folder)
            else:
                chunks = {chunk.id: chunk for chunk in Plan.model_validate(manifest.plan).chunks}
                parts = [(chunks[part.header.chunk_id], part) for part in manifest.parts]
                files = export_messages(store, parts, folder)
        except KeyTaken as taken:  # in the user's own folder: theirs to mend
            raise UserError(taken.what, where=taken.where, remedy=taken.remedy) from None
    return {"form": form, "files": [str(path) for path in files]}


def describe_export(found: dict[str, Any]) -> str:
    """Say where the files are."""
    files = found["files"]
    return (
        f"{len(files):,} {found['form']} files in {Path(files[0]).parent}" if files else "no rows"
    )
