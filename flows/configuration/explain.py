"""Turns a validation error of pydantic into one line that a person can act on (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rapidfuzz import process

from flows.config import ExpansionConfig
from tasks.errors import ConfigIssue

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Pydantic names its own types; a person writes YAML.
_WANTED = {
    "dict_type": "must be a group of settings (`key: value`)",
    "model_type": "must be a group of settings (`key: value`)",
    "model_attributes_type": "must be a group of settings (`key: value`)",
    "tuple_type": "must be a list (`[a, b]`)",
    "list_type": "must be a list (`[a, b]`)",
}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def explain(fault: ErrorDetails, origins: Mapping[tuple[str, ...], str], file: str) -> ConfigIssue:
    """Say of one fault where it stands, what is wrong, and what would be right.

    Args:
        fault: One entry of `ValidationError.errors()`.
        origins: Place (file:line:column or --set) by key path.
        file: Named where the fault has no place, such as a missing top-level key.
    """
    path = tuple(str(step) for step in fault["loc"])
    # A missing key stands nowhere: name the nearest group that does.
    place = next(
        (origins[path[:n]] for n in range(len(path), 0, -1) if path[:n] in origins), f"{file}:1:1"
    )
    owner = _model_at(path[:-1])
    field = owner.model_fields.get(path[-1]) if owner and path else None
    message, hint = fault["msg"].removeprefix("Value error, "), ""
    if fault["type"] == "extra_forbidden":
        message = "unknown key"
        known = list(owner.model_fields) if owner else []
        near = process.extractOne(path[-1], known, score_cutoff=60)
        hint = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(sorted(known))}"
    elif fault["type"] == "missing":
        message, hint = "is required", _describe(field)
    elif fault["type"] != "value_error":
        wanted = _WANTED.get(fault["type"], f"{message[0].lower()}{message[1:]}")
        message, hint = f"{wanted}, not {fault['input']!r:.60}", _describe(field)
    return ConfigIssue(place, ".".join(path) or "-", message, hint)


def _model_at(path: tuple[str, ...]) -> type[BaseModel] | None:
    """Follow a key path through the nested models."""
    kind: Any = ExpansionConfig
    for step in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(step)
            kind = field.annotation if field else None
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return None
        kind = _without_none(kind)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _without_none(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        members = [member for member in get_args(kind) if member is not type(None)]
        return members[0] if len(members) == 1 else kind
    return kind


def _describe(field: FieldInfo | None) -> str:
    """Give a field's description and allowed range."""
    if field is None:
        return ""
    bounds = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in _BOUNDS.items()
        if getattr(rule, name, None) is not None
    ]
    text = (field.description or "").rstrip(".")
    return f"{text}; allowed: {' and '.join(bounds)}" if bounds else text
