"""Sources of prompts: the registry, pinning a source to a revision, and its rows.

Enters: a SourceConfig. Leaves: the completed configuration, a ResolvedSource (a Hub commit, or a
file's sha256), and rows one by one. It exists so that a run reads the very rows that its request
froze, and so that a wrong name, path or mapping is an error before the first GPU hour.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from rapidfuzz import process
from ruamel.yaml import YAML

from tasks.errors import SourceError
from tasks.prompts.config import RowMapping, SourceConfig
from tasks.prompts.files import hash_file, read_file
from tasks.prompts.hub import read_dataset, resolve_commit
from tasks.prompts.record import ResolvedSource
from tasks.prompts.row_paths import MISSING, lookup, nearest_paths

N_CHECKED_ROWS = 100
_REGISTRY = Path(__file__).with_name("sources.yaml")


@lru_cache(maxsize=1)
def load_registry() -> dict[str, SourceConfig]:
    """Read the registry that ships with the package."""
    entries = YAML(typ="safe", pure=True).load(_REGISTRY.read_text(encoding="utf-8"))
    return {name: SourceConfig.model_validate(entry) for name, entry in entries.items()}


def complete_source(key: str, config: SourceConfig) -> SourceConfig:
    """Fill a configuration from the registry entry that it uses; what it sets itself wins.

    Raises:
        SourceError: No such entry, or the result does not hold together.
    """
    if config.use is not None:
        registry = load_registry()
        entry = registry.get(config.use)
        if entry is None:
            near = process.extractOne(config.use, list(registry))
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise SourceError(
                f"the registry has no entry {config.use!r}.",
                where=f"sources.{key}.use",
                remedy=f"{hint}The entries are: {', '.join(sorted(registry))}.",
            )
        own = {name: getattr(config, name) for name in config.model_fields_set - {"use"}}
        place = {"dataset": None, "config": None, "revision": None} if config.path else {}
        if config.dataset:
            place = {"config": None, "revision": None}
        config = entry.model_copy(update={**place, **own})
    return config


def resolve_source(key: str, config: SourceConfig, hf_token: str | None) -> ResolvedSource:
    """Pin a source: a Hub dataset to its commit, a local file to its sha256.

    Raises:
        SourceError: The dataset or file cannot be reached, with the remedy.
    """
    config = complete_source(key, config)
    if config.path is not None:
        path = Path(config.path)
        dataset, revision = path.name, hash_file(path)
    else:
        dataset = config.dataset or ""
        revision = resolve_commit(dataset, config.revision, hf_token)
    return ResolvedSource(
        key=key,
        dataset=dataset,
        config=config.config,
        split=config.split,
        revision=revision,
        licence=config.licence,
    )


def iter_rows(
    source: ResolvedSource, config: SourceConfig, hf_token: str | None, *, max_row_bytes: int
) -> Iterator[object]:
    """Read a pinned source's rows in order; a row that cannot be read is an UnreadableRow.

    Args:
        source: The source as resolved.
        config: Its configuration; completed here if need be.
        hf_token: Token for gated datasets.
        max_row_bytes: A longer line of a local file is not held in memory.

    Raises:
        SourceError: It cannot be read, it is no longer what was resolved, or a path of the mapping
            is in none of the first rows.
    """
    config = complete_source(source.key, config)
    mapping = config.mapping
    if mapping is None:
        raise ValueError(f"source {source.key} has no mapping")
    if config.path is not None:
        path = Path(config.path)
        if hash_file(path) != source.revision:
            raise SourceError(
                "the file is not the one that this run began with.",
                where=str(path),
                remedy="Put the file back as it was, or start a new run at another store.uri.",
            )
        rows = read_file(path, columns=_list_columns(mapping), max_row_bytes=max_row_bytes)
        where = str(path)
    else:
        rows = read_dataset(source, hf_token)
        where = source.dataset
    first = list(islice(rows, N_CHECKED_ROWS))
    check_mapping(first, mapping, where=where)
    return chain(first, rows)


def check_mapping(rows: list[object], mapping: RowMapping, *, where: str) -> None:
    """Check a mapping against a source's first rows.

    Raises:
        SourceError: A path of it is in none of them; names the nearest that exist.
    """
    objects = [row for row in rows if isinstance(row, dict)]
    if not objects:
        return
    for name in ("messages", "turns", "prompt", "input", "system", "tools",
                 "id", "label", "language"):  # fmt: skip
        path = getattr(mapping, name)
        if path is not None:
            _check_path(objects, f"mapping.{name}", path, where)
    for path in mapping.filter:
        _check_path(objects, "mapping.filter", path, where)
    if mapping.messages is not None:
        messages = [
            message for row in objects for message in _list_messages(lookup(row, mapping.messages))
        ]
        for name in ("role_key", "content_key") if messages else ():
            _check_path(messages, f"mapping.{name}", getattr(mapping, name), where)


def _check_path(objects: list[dict[str, object]], name: str, path: str, where: str) -> None:
    if any(lookup(row, path) is not MISSING for row in objects):
        return
    near = nearest_paths(objects, path)
    hint = f" Nearest in the rows: {', '.join(near)}." if near else ""
    raise SourceError(
        f"{name} is {path!r}, which is in none of the first {len(objects)} rows.{hint}",
        where=where,
        remedy=f"Correct {name} of the source, or remove it.",
    )


def _list_messages(value: object) -> list[dict[str, object]]:
    parts = value if isinstance(value, list) else []
    flat = [one for part in parts for one in (part if isinstance(part, list) else [part])]
    return [message for message in flat if isinstance(message, dict)]


def _list_columns(mapping: RowMapping) -> list[str]:
    paths = [
        mapping.messages, mapping.turns, mapping.prompt, mapping.input, mapping.system,
        mapping.tools, mapping.reference, mapping.id, mapping.label, mapping.language,
        *mapping.filter,
    ]  # fmt: skip
    return [path for path in paths if path is not None]
