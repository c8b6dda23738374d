"""What came before a run: earlier runs below the same root, and the dataset to build upon.

Enters: a root prefix. Leaves: a list of finished runs and the newest sound dataset, to be frozen in
the request; and from the frozen list, what those runs met. It exists so that a new revision of a
source costs its new rows only, and so that a rerun sees the very past that the run began with.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.errors import CorruptPart, UserError
from tasks.prompts.prompt_file import iter_records
from tasks.prompts.record import Plan
from tasks.storage.config import StoreConfig
from tasks.storage.layout import parse_manifest_key
from tasks.storage.location import Location, parse_uri
from tasks.storage.manifest import read_latest, read_revision
from tasks.storage.record import Manifest
from tasks.storage.store import ArtifactStore, S3Credentials, open_store
from tasks.tokens.config import BaseDatasetConfig

_COPY_BYTES = 1 << 20


class EarlierRun(BaseModel):
    """A finished run as it stood when this one began; part of `resolved` in request.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: str
    revision: int
    plan_sha: str
    created_at: str
    counts: Literal["answered", "all"]
    """Which of its prompts are left out: those it answered, or all that it met."""


class Past(BaseModel):
    """All that came before; `base` is the run whose dataset this one builds upon."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: tuple[EarlierRun, ...] = ()
    base: EarlierRun | None = None


def find_past(
    config: StoreConfig,
    credentials: S3Credentials | None,
    *,
    root: str | None,
    earlier: Sequence[str],
    wants_base: bool,
) -> Past:
    """Find the finished runs below `root` and the prefixes of `earlier`, this one excepted.

    Args:
        config: This run's store.
        credentials: Its credentials; the other prefixes are read with them too.
        root: Where a run over one source has its siblings; None for any other run.
        earlier: Prefixes that the user names.
        wants_base: Whether the newest sound dataset below the root shall be the base.

    Raises:
        UserError: The newest run below the root cannot be built upon. With an older one its rows
            would be in neither base nor new data, for its prompts count as met.
    """
    runs: dict[str, EarlierRun] = {}
    base: EarlierRun | None = None
    newest: EarlierRun | None = None
    own_uri = parse_uri(config.uri).uri
    for uri in (*earlier, *([root] if root else [])):
        for run_uri, manifest in _list_runs(config, credentials, uri):
            if run_uri == own_uri:
                continue
            run = EarlierRun(
                uri=run_uri,
                revision=manifest.revision,
                plan_sha=manifest.plan_sha,
                created_at=manifest.created_at,
                counts="all" if uri == root else "answered",
            )
            runs[run_uri] = run
            if wants_base and uri == root:
                newest = _later(newest, run)
                base = _later(base, run) if _is_whole(config, credentials, run) else base
    if newest != base and newest is not None:
        raise UserError(
            "the newest dataset below the root cannot be built upon: it refers to its base, or "
            "shards of it are gone.",
            where=newest.uri,
            remedy="Finish that run again with merge.base_rows: copy (or repair it), or name a "
            "base in the configuration.",
        )
    return Past(runs=tuple(runs[uri] for uri in sorted(runs)), base=base)


def _later(one: EarlierRun | None, other: EarlierRun) -> EarlierRun:
    return max(one or other, other, key=lambda run: (run.created_at, run.uri))


def iter_seen(
    config: StoreConfig, credentials: S3Credentials | None, run: EarlierRun
) -> Iterator[tuple[str | None, bytes]]:
    """Read the ids of prompts that an earlier run met.

    Yields:
        (None, id) of a prompt that it answered, whatever its source; (source, id) of one that it
        met there.

    Raises:
        CorruptPart: The run is no longer what it was.
    """
    with _open(config, credentials, run.uri) as store:
        plan = _read_plan(store, run)
        for chunk in plan.chunks:
            for record in _read(store, chunk.prompts_key, ["id"]):
                yield None, bytes.fromhex(record["id"])
        if run.counts == "all":
            for receipt in plan.extracted:
                for record in _read(store, receipt.seen_key, ["id"]):
                    yield receipt.source, record["id"]


def adopt_dataset(
    config: StoreConfig, credentials: S3Credentials | None, run: EarlierRun, folder: Path
) -> BaseDatasetConfig:
    """Give an earlier run's dataset as the base; from S3 its shards are fetched once.

    Args:
        config: This run's store.
        credentials: Its credentials.
        run: Whose dataset it is.
        folder: Local folder for what is fetched.

    Raises:
        CorruptPart: A shard is not what its manifest says.
    """
    with _open(config, credentials, run.uri) as store:
        manifest = _read_revision(store, run)
        if run.uri.startswith("file://"):
            place = Path(unquote(urlsplit(run.uri).path)) / manifest.shards[0].key
            path = place.parent
        else:
            path = folder / hashlib.sha256(f"{run.uri}#{run.revision}".encode()).hexdigest()[:16]
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for shard in manifest.shards:
                _fetch(store, shard.key, shard.sha256, path / shard.key.rpartition("/")[2])
    return BaseDatasetConfig(path=str(path), domain="domain", source="source")


def _fetch(store: ArtifactStore, key: str, sha256: str, path: Path) -> None:
    if path.exists():
        return
    digest = hashlib.sha256()
    # Two runs may fetch the same base at once.
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with store.open(key) as source, partial.open("wb") as copy:
        while data := source.read(_COPY_BYTES):
            digest.update(data)
            copy.write(data)
    if digest.hexdigest() != sha256:
        partial.unlink()
        raise _changed(store.uri, f"{key} is not what its manifest says")
    partial.replace(path)


@contextmanager
def _open(
    config: StoreConfig, credentials: S3Credentials | None, uri: str
) -> Iterator[ArtifactStore]:
    # Only read from, so that no prefix is protected from it.
    store = open_store(config.model_copy(update={"uri": uri, "protected": ()}), credentials)
    try:
        yield store
    finally:
        store.close()


def _list_runs(
    config: StoreConfig, credentials: S3Credentials | None, uri: str
) -> Iterator[tuple[str, Manifest]]:
    root = parse_uri(uri)
    with _open(config, credentials, uri) as store:
        keys = [stat.key for stat in store.list() if "_manifest/" in stat.key]
    for prefix, _ in groupby(sorted(key.rpartition("_manifest/")[0] for key in keys)):
        if all(parse_manifest_key(key.removeprefix(prefix)) is None for key in keys):
            continue
        segments = (*root.segments, *filter(None, prefix.split("/")))
        run_uri = Location(root.scheme, root.bucket, segments).uri
        with _open(config, credentials, run_uri) as store:
            manifest = read_latest(store)
        if manifest is not None:
            yield run_uri, manifest


def _is_whole(config: StoreConfig, credentials: S3Credentials | None, run: EarlierRun) -> bool:
    """Whether a run's dataset can be built upon: every shard is there, and no row is elsewhere."""
    with _open(config, credentials, run.uri) as store:
        manifest = _read_revision(store, run)
        if manifest.base is not None or not manifest.shards:
            return False
        stats = [(shard, store.head(shard.key)) for shard in manifest.shards]
    return all(stat is not None and stat.n_bytes == shard.n_bytes for shard, stat in stats)


def _read_manifest(store: ArtifactStore, run: EarlierRun) -> Manifest:
    manifest = read_latest(store)
    if manifest is None or manifest.plan_sha != run.plan_sha:
        raise _changed(run.uri, "its manifest is gone or another one")
    return manifest


def _read_revision(store: ArtifactStore, run: EarlierRun) -> Manifest:
    """Read the manifest that was frozen: a retry since then has made another dataset."""
    manifest = read_revision(store, run.revision)
    if manifest is None or manifest.plan_sha != run.plan_sha:
        raise _changed(run.uri, f"its manifest r{run.revision:04} is gone or another one")
    return manifest


def _read_plan(store: ArtifactStore, run: EarlierRun) -> Plan:
    try:
        return Plan.model_validate(_read_manifest(store, run).plan)
    except ValidationError as error:
        raise _changed(run.uri, "its plan is of another version of draftmill") from error


def _read(store: ArtifactStore, key: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from iter_records(store.get(key), columns)
    except (FileNotFoundError, OSError, ValueError) as error:
        raise _changed(store.uri, f"{key} cannot be read ({type(error).__name__})") from error


def _changed(uri: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"an earlier run is not what it was when this one began: {what}.",
        where=uri,
        remedy="Restore it (`draftmill verify` and `draftmill repair` there), or start this run "
        "at another store.uri.",
    )
