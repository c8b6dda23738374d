"""The user's sources: an entry written by looking at a file, and rows before and after.

Enters: a file of rows, or the name of an entry and a configuration. Leaves: an entry ready to be
pasted or appended, or three rows as they are and as they become. Rows are untrusted: they are shown
as text in JSON, cut to a length.
"""

from __future__ import annotations

import re
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from rich.console import Group, RenderableType
from rich.text import Text
from ruamel.yaml import YAML

from flows.config import ExpansionConfig
from flows.dataset.inspect import read_credentials
from flows.stages.remote import fetch_sources
from tasks.errors import SourceError, UserError
from tasks.prompts.config import RowMapping
from tasks.prompts.files import read_file
from tasks.prompts.guess import guess_mapping, measure_read
from tasks.prompts.normalize import read_row
from tasks.prompts.record import RowRefused
from tasks.prompts.sources import complete_source, iter_rows, load_registry, resolve_source
from tasks.settings import read_settings

_N_LOOKED_AT = 200
_N_SHOWN = 3
_MAX_ROW_BYTES = 1_000_000
_MAX_SHOWN_CHARS = 1_200


def add_source(path: Path, name: str | None, into: Path | None) -> dict[str, Any]:
    """Guess an entry for a file; append it to a configuration where one is given.

    Args:
        path: The rows.
        name: Of the source; empty: made of the file's name.
        into: A configuration whose `sources` gets the entry; its comments are kept.

    Raises:
        SourceError: The file cannot be read, or has no known shape.
        UserError: The configuration cannot be written, or has a source of that name.
    """
    rows = list(islice(read_file(path, columns=[], max_row_bytes=_MAX_ROW_BYTES), _N_LOOKED_AT))
    mapping = guess_mapping(rows, where=str(path))
    key = name or re.sub(r"[^a-z0-9]+", "-", path.name.lower().split(".")[0]).strip("-") or "mine"
    set_fields = mapping.model_dump(mode="json", exclude_defaults=True)
    entry = {"path": str(path), "mapping": set_fields}
    if into is not None:
        _append(into, key, {**entry, "path": str(path.resolve())})
    return {
        "name": key,
        "entry": entry,
        "n_rows": len(rows),
        "share_read": measure_read(rows, mapping),
        "written_to": None if into is None else str(into),
        "rows": [_pair(row, mapping) for row in rows[:_N_SHOWN]],
    }


def show_source(name: str, config: ExpansionConfig | None) -> dict[str, Any]:
    """Show an entry, and three rows before and after.

    Args:
        name: A source of the configuration, or an entry of the registry.
        config: The configuration; None: the registry alone.

    Raises:
        SourceError: There is no such entry, or its rows cannot be read.
    """
    known = dict(load_registry()) | (dict(config.sources) if config is not None else {})
    if name not in known:
        raise SourceError(
            "there is no such source.",
            where=name,
            remedy=f"Known are: {', '.join(sorted(known))}.",
        )
    source = complete_source(name, known[name])
    settings = read_settings()
    token = settings.hf_token.get_secret_value() if settings.hf_token else None
    if config is not None:
        source = _localise(config.model_copy(update={"sources": {name: source}})).sources[name]
    resolved = resolve_source(name, source, token)
    rows = list(islice(iter_rows(resolved, source, token, max_row_bytes=_MAX_ROW_BYTES), _N_SHOWN))
    return {
        "name": name,
        "entry": source.model_dump(mode="json", exclude_defaults=True),
        "revision": resolved.revision,
        "rows": [_pair(row, source.mapping) for row in rows],
    }


def describe_source(found: dict[str, Any]) -> RenderableType:
    """Lay an entry and its rows out."""
    text = StringIO()
    YAML().dump({"sources": {found["name"]: found["entry"]}}, text)
    parts: list[RenderableType] = [Text(text.getvalue().rstrip())]
    if "share_read" in found:
        share = f"{found['share_read']:.0%} of the first {found['n_rows']:,} rows are read"
        place = found["written_to"]
        told = share + (f"; written to {place}" if place else "; paste it into yours")
        parts += ["", Text(told)]
    for index, pair in enumerate(found["rows"]):
        parts += ["", Text(f"row {index} before", style="bold"), Text(_cut(pair["before"]))]
        parts += [Text(f"row {index} after", style="bold"), Text(_cut(pair["after"]))]
    return Group(*parts)


def _localise(config: ExpansionConfig) -> ExpansionConfig:
    if not any((source.path or "").startswith("s3://") for source in config.sources.values()):
        return config
    settings = read_settings()
    return fetch_sources(config, read_credentials(config.store, settings), settings.home)


def _pair(row: object, mapping: RowMapping | None) -> dict[str, Any]:
    try:
        read = read_row(row, mapping)
        after: dict[str, Any] = {
            "messages": read.messages,
            "tools": read.tools,
            "labels": read.labels,
            "language": read.language,
            "reference": read.reference,
        }
    except RowRefused as refused:
        after = {"rejected": refused.kind, "detail": refused.detail}
    return {"before": row, "after": {key: value for key, value in after.items() if value}}


def _cut(value: object) -> str:
    text = orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]} ..."


def _append(into: Path, key: str, entry: dict[str, Any]) -> None:
    yaml = YAML()
    try:
        document = yaml.load(into.read_text(encoding="utf-8")) if into.exists() else {}
        sources = document.setdefault("sources", {})
        if key in sources:
            raise UserError(
                f"it has a source {key!r} already.",
                where=str(into),
                remedy="Give another name with --name.",
            )
        sources[key] = entry
        text = StringIO()
        yaml.dump(document, text)
        partial = into.with_name(f"{into.name}.partial")
        partial.write_text(text.getvalue(), encoding="utf-8")
        partial.replace(into)
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(
            f"the entry cannot be written ({error}).",
            where=str(into),
            remedy="Give a YAML configuration that can be written, or leave --into out.",
        ) from error
