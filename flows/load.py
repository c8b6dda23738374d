"""Reads a configuration file: YAML in, ExpansionConfig and the origin of each value out.

A shipped profile may stand in the place of a file, or be built upon with `extends: NAME`. Every
fault is reported at once, each with file:line:column, key path, nearest known key and range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import RenderableType
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent

from flows.config import ExpansionConfig
from flows.explain import explain
from flows.speak import table
from tasks.errors import ConfigError, ConfigIssue

PROFILES = Path(__file__).parent.parent / "deployments" / "profiles"
# Keys whose relative values are places beside the file that names them.
_PATH_KEYS = ("store.uri", "base.path", "serving.python", "serving.simulator.request_log")

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
    values: dict[str, Any] = {}
    origins: dict[KeyPath, str] = {}
    for path in _chain(_find(source)):
        document = _parse(path)
        document.pop("extends", None)
        _merge(values, document, origins, path, ())
    for text in sets:
        _apply_set(values, origins, text)
    try:
        config = ExpansionConfig.model_validate(values)
    except ValidationError as error:
        issues = tuple(explain(fault, origins, source) for fault in error.errors())
        raise ConfigError(
            f"{source} has {len(issues)} fault{'s' if len(issues) > 1 else ''}:", issues=issues
        ) from error
    return LoadedConfig(config, origins)


def _find(source: str) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        return path.resolve()
    if source in list_profiles():
        return PROFILES / f"{source}.yaml"
    raise ConfigError(
        "no such configuration",
        issues=(
            ConfigIssue(
                source, "-", "no such file", f"shipped profiles: {', '.join(list_profiles())}"
            ),
        ),
    )


def _chain(path: Path) -> list[Path]:
    """List the file and what it extends, the farthest first."""
    chain = [path]
    while True:
        parent = _parse(chain[0]).get("extends")
        if parent is None:
            return chain
        beside = chain[0].parent / str(parent)
        found = beside.resolve() if beside.is_file() else _find(str(parent))
        if found in chain:
            raise _fault(chain[0], "extends", "the files extend each other in a circle")
        chain.insert(0, found)


def _parse(path: Path) -> Any:
    yaml = YAML()  # round-trip: keeps line and column, refuses duplicate keys
    try:
        text = path.read_text(encoding="utf-8-sig")
        for event in YAML().parse(text):
            if isinstance(event, AliasEvent):
                line, column = event.start_mark.line + 1, event.start_mark.column + 1
                raise _fault(path, "-", "YAML aliases are not accepted", f"{line}:{column}")
        document = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        reason = str(error.problem or error).splitlines()[0]
        raise _fault(path, "-", f"not valid YAML: {reason}", where) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise _fault(path, "-", f"cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise _fault(path, "-", "must be a mapping of keys to values")
    return document


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
        into[str(key)] = _plain(value, file, path)


def _plain(value: Any, file: Path, path: KeyPath) -> Any:
    """Turn ruamel's containers into plain ones, and relative places into absolute ones."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, file, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, file, path) for item in value]
    return _place(value, file.parent, path) if isinstance(value, str) else value


def _place(value: str, folder: Path, path: KeyPath) -> str:
    dotted = ".".join(path)
    is_source_file = path[:1] == ("sources",) and path[-1:] == ("path",) and len(path) == 3
    if "://" in value or not (dotted in _PATH_KEYS or is_source_file):
        return str(value)
    absolute = (folder / Path(value).expanduser()).resolve()
    if dotted == "serving.python":
        absolute = folder / Path(value).expanduser()  # a venv's python is a link: keep it
    return absolute.as_uri() if dotted == "store.uri" else str(absolute)


def _apply_set(values: dict[str, Any], origins: dict[KeyPath, str], text: str) -> None:
    dotted, equals, raw = text.partition("=")
    path = tuple(dotted.strip().split("."))
    if not equals or not all(path):
        issue = ConfigIssue(f"--set {text}", dotted, "must be a.b.c=value")
        raise ConfigError("a --set cannot be used:", issues=(issue,))
    try:
        value = YAML(typ="safe", pure=True).load(raw)
    except YAMLError as error:
        issue = ConfigIssue(f"--set {text}", dotted, "its value is not valid YAML")
        raise ConfigError("a --set cannot be used:", issues=(issue,)) from error
    here = values
    for key in path[:-1]:
        inner = here.setdefault(key, {})
        if not isinstance(inner, dict):
            issue = ConfigIssue(f"--set {text}", dotted, f"{key} is not a group of settings")
            raise ConfigError("a --set cannot be used:", issues=(issue,))
        here = inner
    here[path[-1]] = _place(value, Path.cwd(), path) if isinstance(value, str) else value
    origins[path] = f"--set {dotted}"


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
