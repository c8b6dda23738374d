"""The one place where keys and prefixes are made and checked; pure.

Enters: numbers, hashes and names, some of them written by strangers. Leaves: keys relative to the
run's prefix, and parsed prefixes. It exists so that no other file joins a key by hand: a key that
could leave the prefix, or a prefix that touches a protected one, is refused here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import NamedTuple

from tasks.errors import ProtectedPrefix, StoreError
from tasks.storage.location import Location, find_fault, parse_uri

_SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_HEX = re.compile(r"[0-9a-f]+")
_DATA_KEY = re.compile(
    r"data/(?:retry-([0-9]{2,})-)?part-([0-9]{6,})(?:\.r([1-9][0-9]*))?\.jsonl\.zst", re.ASCII
)
_DERIVED = re.compile(r"[a-z0-9][a-z0-9._-]*@([0-9a-f]{12})-([0-9a-f]{8})", re.ASCII)
_RETRY_KEY = re.compile(r"_run/retry-([0-9]{2,})\.json", re.ASCII)
_MANIFEST_KEY = re.compile(r"_manifest/r([0-9]{4,})\.json", re.ASCII)


class PartPlace(NamedTuple):
    """Where a data part belongs: its retry (0: none), its number (a chunk's id), its revision."""

    retry: int
    number: int
    revision: int


def check_key(key: str) -> str:
    """Return a key that stays within its prefix, unchanged.

    Raises:
        ValueError: `..`, an empty or hidden segment, a leading slash, a backslash, a control
            character, or a key that is too long or no UTF-8.
    """
    fault = find_fault(key) or ("a segment begins with a dot" if "/." in f"/{key}" else "")
    if fault:
        raise ValueError(f"{key!r} is no key: {fault}")
    return key


def check_prefix(uri: str, protected: Iterable[str]) -> Location:
    """Parse a prefix that data may be written under.

    A protected prefix without a scheme counts from the bucket; for a file:// prefix it counts from
    every folder above the prefix, so that no folder called `completions` is ever entered.

    Raises:
        StoreError: The uri, or a protected one, is malformed.
        ProtectedPrefix: The prefix equals, contains or lies within a protected one.
    """
    location = parse_uri(uri)
    for entry in protected:
        if any(location.overlaps(shielded) for shielded in _locate_protected(location, entry)):
            raise ProtectedPrefix(
                f"the prefix equals, contains or lies within {entry!r}, which is protected.",
                where=location.uri,
                remedy="Choose another prefix for store.uri; data there is never written over.",
            )
    return location


def derive_prefix(root_uri: str, source_key: str, revision: str, asked_sha: str) -> str:
    """Name the prefix of a triggered run, so that a doubled event finds the first one's data."""
    commit = revision.lower()
    if not _HEX.fullmatch(commit) or len(commit) < 12:
        commit = hashlib.sha256(revision.encode("utf-8", "surrogatepass")).hexdigest()
    leaf = f"{source_segment(source_key)}@{commit[:12]}-{_check_hex(asked_sha)[:8]}"
    root = parse_uri(root_uri)
    return Location(root.scheme, root.bucket, (*root.segments, leaf)).uri


def parse_derived(folder: str) -> tuple[str, str] | None:
    """Read (start of the commit, start of the asked sha) from a folder that `derive_prefix` named.

    None: it names no triggered run.
    """
    match = _DERIVED.fullmatch(folder)
    return None if match is None else (match[1], match[2])


def derive_results_uri(uri: str, results_uri: str | None, protected: Iterable[str]) -> str:
    """Place Prefect's own results: they are overwritten by nature, so never within the run's.

    Raises:
        StoreError: The results' prefix overlaps the run's, or is malformed.
        ProtectedPrefix: The results' prefix overlaps a protected one.
    """
    run = parse_uri(uri)
    results = check_prefix(results_uri or f"{run.uri}-prefect-results", protected)
    if not results.segments or results.overlaps(run):
        raise StoreError(
            "Prefect's results are overwritten on retry and need a prefix outside of the run's.",
            where=results.uri,
            remedy="Set store.results_uri to a prefix beside store.uri, neither within the other.",
        )
    return results.uri


def source_segment(source: str) -> str:
    """Turn the name of a source into one safe segment; another name gives another segment."""
    if _SAFE_NAME.fullmatch(source):
        return source
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", source[:200].lower()).strip("-")[:40]
    return f"{slug or 'source'}-{digest}"


def request_key() -> str:
    """What was asked and what it resolved to; the first object of a run."""
    return "_run/request.json"


def plan_key() -> str:
    """The plan: all that decides the answers."""
    return "_run/plan.json"


def retry_prefix() -> str:
    """What the keys of all retry lists begin with."""
    return "_run/retry-"


def retry_key(retry: int) -> str:
    """The conversations that a retry asks for anew; retries count from 1."""
    return f"{retry_prefix()}{_check_retry(retry):02d}.json"


def parse_retry_key(key: str) -> int | None:
    """Read the number of a retry from the key of its list; None if it is none."""
    match = _RETRY_KEY.fullmatch(key)
    if match is None or not int(match[1]) or retry_key(int(match[1])) != key:
        return None
    return int(match[1])


def probe_key() -> str:
    """The object that shows whether the store honours the create-only condition."""
    return "_run/create-only-probe"


def race_probe_key() -> str:
    """The object that writers raced for, of whom one alone may have won."""
    return "_run/create-only-race"


def presence_prefix() -> str:
    """What the keys that tell of runs begin with."""
    return "_run/runs/"


def begun_key(run_id: str) -> str:
    """Written when a process begins to work at the prefix."""
    return check_key(f"{presence_prefix()}{run_id}.begun.json")


def ended_key(run_id: str) -> str:
    """Written when that process ends, unless it is killed."""
    return check_key(f"{presence_prefix()}{run_id}.ended.json")


def extracted_key(source: str, index: int) -> str:
    """The `index`-th file of prompts that a source gave."""
    return f"extracted/{source_segment(source)}/part-{_check_number(index):06d}.parquet"


def rejections_key(source: str) -> str:
    """The rows of a source that gave no prompt, and why."""
    return f"extracted/{source_segment(source)}/rejections.parquet"


def seen_key(source: str) -> str:
    """The ids of all prompts that a source held: kept, rejected or left out by its quota."""
    return f"extracted/{source_segment(source)}/seen.parquet"


def prompts_key(chunk_id: int) -> str:
    """The prompts of one chunk."""
    return f"prompts/part-{_check_number(chunk_id):06d}.parquet"


def part_prefix(retry: int, index: int) -> str:
    """What the keys of every revision of a data part begin with, and no other key."""
    whose = f"retry-{_check_retry(retry):02d}-" if retry else ""
    return f"data/{whose}part-{_check_number(index):06d}."


def part_key(place: PartPlace) -> str:
    """A data part, of a chunk or of a retry."""
    suffix = f"r{place.revision}." if _check_number(place.revision) else ""
    return f"{part_prefix(place.retry, place.number)}{suffix}jsonl.zst"


def parse_part_key(key: str) -> PartPlace | None:
    """Read where a data part belongs from its key; None if it is none."""
    match = _DATA_KEY.fullmatch(key)
    if match is None or (match[1] and not int(match[1])):
        return None
    place = PartPlace(int(match[1] or 0), int(match[2]), int(match[3] or 0))
    return place if part_key(place) == key else None


def data_key(chunk_id: int, revision: int = 0) -> str:
    """The outcomes of one chunk; a revision above 0 replaces a damaged part."""
    return part_key(PartPlace(0, chunk_id, revision))


def parse_data_key(key: str) -> tuple[int, int] | None:
    """Read (chunk id, revision) from the key of a chunk's part; None if it is none."""
    place = parse_part_key(key)
    return None if place is None or place.retry else (place.number, place.revision)


def tokens_key(digest: str, data_key: str, data_sha256: str, revision: int = 0) -> str:
    """The samples made from one data part under the token settings of `digest`.

    A revision above 0 replaces damaged samples of the same part.
    """
    if parse_part_key(data_key) is None:
        raise ValueError(f"{data_key!r} is no key of a data part")
    name = data_key.removeprefix("data/").removesuffix(".jsonl.zst")
    suffix = f".r{revision}" if _check_number(revision) else ""
    return f"tokens/{_check_hex(digest)}/{name}-{_check_hex(data_sha256)[:12]}{suffix}.parquet"


def shard_key(dataset_revision: int, index: int) -> str:
    """One file of the merged dataset."""
    return f"dataset/r{_check_number(dataset_revision):04d}/part-{_check_number(index):06d}.parquet"


def report_key(dataset_revision: int) -> str:
    """The report on one revision of the dataset."""
    return f"report/r{_check_number(dataset_revision):04d}/index.html"


def canary_key() -> str:
    """The preview of the canary's samples."""
    return "report/canary.html"


def manifest_prefix() -> str:
    """What the keys of all manifests begin with."""
    return "_manifest/"


def manifest_key(revision: int) -> str:
    """One manifest; the highest valid one counts."""
    return f"{manifest_prefix()}r{_check_number(revision):04d}.json"


def parse_manifest_key(key: str) -> int | None:
    """Read the revision from a manifest's key; None if it is none."""
    match = _MANIFEST_KEY.fullmatch(key)
    if match is None or manifest_key(int(match[1])) != key:
        return None
    return int(match[1])


def _locate_protected(location: Location, entry: str) -> list[Location]:
    if "://" in entry:
        return [parse_uri(entry)]
    if location.scheme == "s3":
        return [parse_uri(f"s3://{location.bucket}/{entry.strip('/')}")]
    relative = parse_uri(f"file:///{entry.strip('/')}").segments
    above = range(max(len(location.segments), 1))
    return [Location("file", "", (*location.segments[:depth], *relative)) for depth in above]


def _check_number(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} is negative: keys count from 0")
    return number


def _check_retry(retry: int) -> int:
    if retry < 1:
        raise ValueError(f"{retry} is no retry: they count from 1")
    return retry


def _check_hex(digest: str) -> str:
    if len(digest) < 8 or not _HEX.fullmatch(digest):
        raise ValueError(f"{digest!r} is no lower-case hex digest")
    return digest
