"""Reads a configuration file: YAML in, ExpansionConfig and the origin of each value out.

A shipped profile may stand in the place of a file, or be built upon with `extends: NAME`. Every
fault is reported at once, each with file:line:column, key path, nearest known key and range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import RenderableType
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    NodeEvent,
    ScalarEvent,
)

from flows.config import ExpansionConfig
from flows.configuration.explain import explain
from flows.process.speak import table
from tasks.errors import ConfigError, ConfigIssue

PROFILES = Path(__file__).parents[2] / "deployments" / "profiles"
# Keys whose relative values are places beside the file that names them.
_PATH_KEYS = ("store.uri", "base.path", "serving.python", "serving.simulator.request_log")
# These may name a Hub repository as well: only `./x`, `../x` and `~/x` are surely places.
_PATH_OR_HUB_KEYS = ("model.path", "model.tokenizer")
_MAX_BYTES = 1_000_000
_MAX_DEPTH = 32

KeyPath = tuple[str, ...]


@dataclass(slots=True)
class LoadedConfig:
    """A valid configuration, and where each of its values was written."""

    config: ExpansionConfig
    origins: dict[KeyPath, str] = field(default_factory=dict)

    def origin(self, path: KeyPath) -> str:
        """Say where a value comes from: file:line, `--set`, or the default."""
        return self.origins.get(path, "default")


def list_profiles() -> list[str]:
    """Name the shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def load_config(source: str, sets: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration.

    Args:
        source: A YAML file, or the name of a shipped profile.
        sets: `a.b=value` overrides, values read as YAML.

    Raises:
        ConfigError: With every fault found.
    """
    values, origins = read_values(source, sets)
    try:
        config = ExpansionConfig.model_validate(values)
    except ValidationError as error:
        issues = tuple(explain(fault, origins, source) for fault in error.errors())
        raise ConfigError(
            f"{source} has {len(issues)} fault{'s' if len(issues) > 1 else ''}:", issues=issues
        ) from error
    return LoadedConfig(config, origins)


def read_values(source: str, sets: Sequence[str] = ()) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """Read a configuration as it is written, whole or not, and the origin of each value.

    Raises:
        ConfigError: A file is missing or is no YAML.
    """
    values: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for path in _chain(_find(source)):
        document = _parse(path)
        document.pop("extends", None)
        _merge(values, document, origins, path, ())
    for text in sets:
        _apply_set(values, origins, text)
    return values, origins


def _find(source: str, place: str = "", key: str = "-") -> Path:
    path = _find_file(Path(source))
    if path is not None:
        return path
    if source in list_profiles():
        return PROFILES / f"{source}.yaml"
    message = "no such file" if place == "" else f"no such file: {source}"
    hint = f"shipped profiles: {', '.join(list_profiles())}"
    raise ConfigError(
        "no such configuration", issues=(ConfigIssue(place or source, key, message, hint),)
    )


def _find_file(path: Path) -> Path | None:
    try:
        path = path.expanduser()
        return path.resolve() if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # a name too long, `~nobody`, a NUL: no file either
        return None


def _chain(path: Path) -> list[Path]:
    """List the file and what it extends, the farthest first."""
    chain = [path]
    while True:
        document = _parse(chain[0])
        parent = document.get("extends")
        if parent is None:
            return chain
        line, column = document.lc.key("extends")
        where = f"{line + 1}:{column + 1}"
        if not isinstance(parent, str):
            message = "must be the name of a profile or of a file"
            raise _fault(chain[0], "extends", message, where)
        found = _find_file(chain[0].parent / parent)
        if found is None:
            found = _find(parent, f"{chain[0]}:{where}", "extends")
        if found in chain:
            raise _fault(chain[0], "extends", "the files extend each other in a circle", where)
        chain.insert(0, found)


def _parse(path: Path) -> Any:
    text = _read(path)
    try:
        _check_plain(path, text)
        document = YAML().load(text)  # round-trip: keeps line and column, refuses duplicate keys
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        reason = str(error.problem or error).splitlines()[0]
        raise _fault(path, "-", f"not valid YAML: {reason}", where) from error
    # ValueError: a date that is none, a number of thousands of digits.
    except (YAMLError, ValueError) as error:
        line = text.count("\n", 0, getattr(error, "position", 0)) + 1
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise _fault(path, "-", f"not valid YAML: {reason}", f"{line}:1") from error
    if not isinstance(document, dict):
        raise _fault(path, "-", "must be a mapping of keys to values")
    return document


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _fault(path, "-", f"cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_BYTES:
        raise _fault(path, "-", f"is over {_MAX_BYTES:,} bytes: no configuration is that large")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise _fault(path, "-", "is not UTF-8 text", f"{line}:1") from error


def _check_plain(path: Path, text: str) -> None:
    """Refuse what only a program would write, before anything is built of it."""
    depth = 0
    for event in YAML().parse(text):
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        fault = ""
        if isinstance(event, AliasEvent):
            fault = "YAML aliases are not accepted"
        elif isinstance(event, NodeEvent) and getattr(event, "tag", None) is not None:
            fault = "YAML tags are not accepted"
        elif isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None:
            fault = "YAML merge keys are not accepted"
        elif depth > _MAX_DEPTH:
            fault = f"nested deeper than {_MAX_DEPTH} levels"
        if fault:
            mark = event.start_mark
            raise _fault(path, "-", fault, f"{mark.line + 1}:{mark.column + 1}")


def _fault(path: Path, key: str, message: str, where: str = "1:1") -> ConfigError:
    issue = ConfigIssue(f"{path}:{where}", key, message)
    return ConfigError(f"{path.name} cannot be used:", issues=(issue,))


def _merge(
    into: dict[str, Any], new: Any, origins: dict[KeyPath, str], file: Path, at: KeyPath
) -> None:
    """Lay `new` over `into`, mapping by mapping; remember where each key stands."""
    for key, value in new.items():
        path = (*at, str(key))
        line, column = new.lc.key(key)
        name = f"profile {file.stem}" if file.parent == PROFILES else str(file)
        origins[path] = f"{name}:{line + 1}:{column + 1}"
        if isinstance(value, dict):
            inner = into.setdefault(str(key), {})
            if isinstance(inner, dict):
                _merge(inner, value, origins, file, path)
                continue
        into[str(key)] = _plain(value, file.parent, path, origins[path])


def _plain(value: Any, folder: Path, path: KeyPath, where: str) -> Any:
    """Turn ruamel's containers into plain ones, and relative places into absolute ones."""
    if isinstance(value, Mapping):
        return {
            str(key): _plain(item, folder, (*path, str(key)), where) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_plain(item, folder, path, where) for item in value]
    return _place(value, folder, path, where) if isinstance(value, str) else value


def _place(value: str, folder: Path, path: KeyPath, where: str) -> str:
    dotted = ".".join(path)
    is_source_file = path[:1] == ("sources",) and path[-1:] == ("path",) and len(path) == 3
    is_source_file |= path[:2] == ("extraction", "benchmarks") and path[-1:] == ("path",)
    is_folder = dotted in _PATH_OR_HUB_KEYS and value.startswith(("./", "../", "~"))
    is_place = dotted in _PATH_KEYS or is_source_file or is_folder
    if not value or "://" in value or not is_place:
        return str(value)
    try:
        beside = folder / Path(value).expanduser()
        # A venv's python is a link: keep it.
        absolute = Path(os.path.abspath(beside)) if path[-1] == "python" else beside.resolve()  # noqa: PTH100
        return absolute.as_uri() if dotted == "store.uri" else str(absolute)
    except (OSError, RuntimeError, ValueError) as error:
        issue = ConfigIssue(where, dotted, f"is no place on this machine: {error}")
        raise ConfigError("a place cannot be used:", issues=(issue,)) from error


def _apply_set(values: dict[str, Any], origins: dict[KeyPath, str], text: str) -> None:
    dotted, equals, raw = text.partition("=")
    path = tuple(dotted.strip().split("."))
    if not equals or not all(path):
        issue = ConfigIssue(f"--set {text}", dotted, "must be a.b.c=value")
        raise ConfigError("a --set cannot be used:", issues=(issue,))
    try:
        value = YAML(typ="safe", pure=True).load(raw)
    except (YAMLError, ValueError, RecursionError) as error:
        issue = ConfigIssue(f"--set {dotted}", dotted, "its value is not valid YAML")
        raise ConfigError("a --set cannot be used:", issues=(issue,)) from error
    here = values
    for key in path[:-1]:
        inner = here.setdefault(key, {})
        if not isinstance(inner, dict):
            issue = ConfigIssue(f"--set {text}", dotted, f"{key} is not a group of settings")
            raise ConfigError("a --set cannot be used:", issues=(issue,))
        here = inner
    origin = f"--set {dotted}"
    here[path[-1]] = _plain(value, Path.cwd(), path, origin)
    for n_steps in range(1, len(path)):
        origins.setdefault(path[:n_steps], origin)
    origins[path] = origin


def list_values(source: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """List every value of a configuration by its dotted key, with where it comes from."""
    loaded = load_config(source, sets)

    def walk(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                yield from walk(item, (*at, str(key)))
        else:
            yield at, value

    return {
        ".".join(path): {"value": value, "origin": loaded.origin(path)}
        for path, value in walk(loaded.config.model_dump(mode="json"), ())
    }


def describe_values(values: dict[str, Any], *, origin: bool) -> RenderableType:
    """Lay the values out, and with `origin` where each comes from."""
    rows = [(key, item["value"], item["origin"]) for key, item in values.items()]
    if origin:
        return table(("key", "value", "from"), rows)
    return table(("key", "value"), [row[:2] for row in rows])
