"""Writes a finished dataset in a form that trainers read, with its card, into a local folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from rich.text import Text

from flows.configuration.complete import locate_model, secret_of
from flows.dataset.inspect import open_prefix
from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.errors import BaseDatasetError, KeyTaken, UserError
from tasks.prompts.record import Plan
from tasks.settings import read_settings
from tasks.storage.manifest import read_latest
from tasks.storage.record import Manifest
from tasks.storage.retry import Standing, read_retries
from tasks.storage.store import ArtifactStore
from tasks.tokens.asked import AnsweredPart, list_answered
from tasks.tokens.base import hash_base, iter_base
from tasks.tokens.card import CARD_NAME, write_card
from tasks.tokens.config import BaseDatasetConfig
from tasks.tokens.export import (
    export_messages,
    export_parquet,
    export_saved,
    export_specforge,
    iter_shards,
)
from tasks.tokens.record import BaseReference

Form = Literal["specforge", "speculators", "messages", "parquet"]


def export_dataset(prefix: str, form: Form, folder: Path) -> dict[str, Any]:
    """Export the newest revision.

    Args:
        prefix: A uri, a folder, or a configuration that names the store.
        form: specforge (JSON lines of `input_ids` and `loss_mask`; speculators' prepare-data reads
            them too), speculators (a folder for its training's `load_from_disk`), messages (JSON
            lines of conversations), or parquet (the canonical rows).
        folder: Where to; must be absent or empty.

    Raises:
        UserError: There is no finished dataset at the prefix, or the folder is not empty.
        CorruptPart: An object is not what the manifest says.
        BaseDatasetError: A base that the manifest refers to has changed or is not here.
    """
    with closing(open_prefix(prefix)) as store:
        manifest = read_finished(store)
        try:
            files = _write(store, manifest, form, folder)
        except KeyTaken as taken:  # in the user's own folder: theirs to mend
            raise UserError(taken.what, where=taken.where, remedy=taken.remedy) from None
        card = folder / CARD_NAME
        card.write_text(write_card(manifest, store.uri, form), encoding="utf-8")
    return {"form": form, "files": [str(path) for path in files], "card": str(card)}


def describe_export(found: dict[str, Any]) -> Text:
    """Say where the files are."""
    files = found["files"]
    if not files:
        return Text("no rows")
    return Text(f"{len(files):,} {found['form']} files in {Path(files[0]).parent}")


def read_finished(store: ArtifactStore) -> Manifest:
    """Read the newest manifest.

    Raises:
        UserError: There is none.
    """
    manifest = read_latest(store)
    if manifest is None:
        raise UserError(
            "there is no finished dataset at this prefix",
            where=store.uri,
            remedy="Let the run end (`draftmill status` tells how far it is), then ask again.",
        )
    return manifest


def list_parts(store: ArtifactStore, manifest: Manifest) -> list[AnsweredPart]:
    """List the manifest's data parts, of chunks and of retries, with what of them counts."""
    lists = read_retries(store, manifest.plan_sha)[: len(manifest.retry_lists)]
    standing = Standing(manifest.parts, manifest.retries, tuple(lists))
    return list_answered(Plan.model_validate(manifest.plan), standing)


def load_template(manifest: Manifest) -> ChatTemplate:
    """Load the target's tokenizer and template, as the run's request names them.

    Raises:
        ModelError: They cannot be had.
        UserError: They are not those of the plan.
    """
    model = locate_model(ModelConfig.model_validate(manifest.request["asked"]["model"]))
    template = ChatTemplate.load(model, secret_of(read_settings()))
    if template.tokenizer_sha256 != manifest.plan["tokenizer_sha256"]:
        raise UserError(
            "the tokenizer at hand is not the one that the plan was made with",
            where=model.tokenizer_path,
            remedy="Restore it, or ask where the run's own tokenizer is.",
        )
    return template


def _write(store: ArtifactStore, manifest: Manifest, form: Form, folder: Path) -> list[Path]:
    if form == "messages":
        plan = Plan.model_validate(manifest.plan)
        return export_messages(store, plan, list_parts(store, manifest), folder)
    base = _iter_referred(manifest)
    if form == "parquet":
        return export_parquet(store, manifest.shards, base, folder)
    export = export_specforge if form == "specforge" else export_saved
    return export(chain(iter_shards(store, manifest.shards), base), folder)


def _iter_referred(manifest: Manifest) -> Iterator[pa.RecordBatch]:
    """Read the rows of a base that the manifest refers to; none where the shards hold them.

    Raises:
        BaseDatasetError: The base is not here, or is another one by now.
    """
    if manifest.base is None:
        return
    reference = BaseReference.model_validate(manifest.base)
    base = BaseDatasetConfig.model_validate(reference.dataset)
    if hash_base(base) != reference.sha256:
        raise BaseDatasetError(
            "the base dataset that this revision refers to has changed since.",
            where=base.path,
            remedy="Restore it, or run again with merge.base_rows: copy.",
        )
    template, thinking = load_template(manifest), bool(manifest.plan["thinking"])
    yield from iter_base(base, template, thinking=thinking, refused=Counter())
