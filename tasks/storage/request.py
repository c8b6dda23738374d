"""Freezing what decides a run: the first writer wins, and another request is refused.

Enters: JSON values, as asked now. Leaves: JSON values, as the prefix holds them. It exists so that
a rerun resumes the very run that was begun, and so that two requests never mix at one prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson
from pydantic import ValidationError

from tasks.errors import CorruptPart, KeyTaken, RequestMismatch
from tasks.storage.layout import request_key
from tasks.storage.record import Request
from tasks.storage.store import ArtifactStore

_MAX_SHOWN = 120
_MISSING = object()


def freeze_request(
    store: ArtifactStore, asked: dict[str, Any], resolve: Callable[[], dict[str, Any]]
) -> Request:
    """Take the request of this prefix, or freeze this one as its first.

    Args:
        store: The run's store.
        asked: The parts of the configuration that decide answers; JSON values.
        resolve: Called only where no request stands yet: sources to commits, and the like.

    Raises:
        RequestMismatch: Another request stands there; `differences` names each field.
        CorruptPart: What stands there is no request.
    """
    asked = _as_json(asked)
    asked_sha = hash_json(asked)
    frozen = read_request(store)
    if frozen is None:
        ours = Request(asked=asked, asked_sha=asked_sha, resolved=_as_json(resolve()))
        try:
            store.create(request_key(), _encode(ours.model_dump(mode="json")))
        except KeyTaken:
            frozen = read_request(store)
        frozen = frozen or ours
    if frozen.asked_sha != asked_sha:
        raise _mismatch(store, request_key(), "request", frozen.asked, asked)
    return frozen


def freeze_json(store: ArtifactStore, key: str, value: dict[str, Any], what: str) -> dict[str, Any]:
    """Freeze a JSON value at a key, or find the same one there.

    Args:
        store: The run's store.
        key: Where it stands.
        value: JSON values.
        what: What to call it in an error: "plan".

    Raises:
        RequestMismatch: Another value stands there; `differences` names each field.
        CorruptPart: What stands there is no JSON object.
    """
    value = _as_json(value)
    try:
        store.create(key, _encode(value))
    except KeyTaken:
        there = _decode(store, key, store.get(key))
        if there != value:
            raise _mismatch(store, key, what, there, value) from None
    return value


def hash_json(value: Any) -> str:
    """Hash a JSON value: sha256 over sorted keys, no spaces, UTF-8."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def list_differences(there: Any, asked: Any, path: str = "") -> Iterator[str]:
    """Name each field in which two JSON values differ, by its dotted path, with both values."""
    if isinstance(there, dict) and isinstance(asked, dict):
        pairs = [
            (str(name), there.get(name, _MISSING), asked.get(name, _MISSING))
            for name in sorted({*there, *asked})
        ]
    elif isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        pairs = [(str(i), *both) for i, both in enumerate(zip(there, asked, strict=True))]
    else:
        if there != asked:
            yield f"{path}: {_show(there)} there, {_show(asked)} asked now"
        return
    for name, before, now in pairs:
        yield from list_differences(before, now, f"{path}.{name}" if path else name)


def read_request(store: ArtifactStore) -> Request | None:
    """Read the request of this prefix; None where no run was begun.

    Raises:
        CorruptPart: What stands there is no request.
    """
    try:
        data = store.get(request_key())
    except FileNotFoundError:
        return None
    try:
        request = Request.model_validate(_decode(store, request_key(), data))
    except ValidationError as error:
        raise _damaged(store, request_key(), "its fields are others than a request's") from error
    if hash_json(request.asked) != request.asked_sha:
        raise _damaged(store, request_key(), "its hash is not that of what was asked")
    return request


def _mismatch(
    store: ArtifactStore, key: str, what: str, there: dict[str, Any], asked: dict[str, Any]
) -> RequestMismatch:
    return RequestMismatch(
        f"another {what} was frozen at this prefix.",
        differences=tuple(list_differences(there, asked)),
        where=f"{store.uri}/{key}",
        remedy="Ask for the same again to resume, or choose another store.uri.",
    )


def _damaged(store: ArtifactStore, key: str, what: str) -> CorruptPart:
    return CorruptPart(
        f"the object is damaged: {what}.",
        where=f"{store.uri}/{key}",
        remedy="Nothing here is written over: choose another store.uri.",
    )


def _decode(store: ArtifactStore, key: str, data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _damaged(store, key, "it is no JSON") from error
    if not isinstance(value, dict):
        raise _damaged(store, key, "it is no JSON object")
    return value


def _encode(value: dict[str, Any]) -> bytes:
    options = orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(value, option=options)


def _as_json(value: dict[str, Any]) -> dict[str, Any]:
    """Bring tuples and the like to what they are once stored, so that equal means equal."""
    return dict(orjson.loads(orjson.dumps(value)))


def _show(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
