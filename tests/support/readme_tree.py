"""The tree in the README, written from the first line of each file: `make tree`.

Enters: the files of the house. Leaves: the section between the markers of README.md. It exists so
that the README cannot tell of files that are gone, or forget one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.support.simulator import ROOT

BEGIN, END = "<!-- tree -->", "<!-- /tree -->"
ROOMS = ("flows", "tasks", "deployments", "infra")
_NOTES = {
    "tasks/prompts/sources.yaml": "The registry: datasets known by name.",
    "tasks/report/templates": "The pages.",
    "deployments/samples/seeds.json": "Words that the invented rows are made of.",
    "infra/sglang": "Pins of the servers' own environment, by SGLang version.",
    "infra/simulator/model": "The small tokenizer and chat template that it ships.",
    "infra/simulator/words.json": "Words that its answers are made of.",
    "deployments/profiles": "demo, attach, rtx-pro-6000-8x, b200-7x.",
}


def write_tree() -> str:
    """Write the section, markers included."""
    lines = [BEGIN, "", "    pyproject.toml  README.md  Makefile  CONTRIBUTING.md  CHANGELOG.md"]
    lines += ["    requirements.lock  requirements-dev.lock  .ci/run  docs/  tests/"]
    for room in ROOMS:
        lines += [*_write_folder(ROOT / room, 4)]
    return "\n".join([*lines, "", END])


def _write_folder(folder: Path, indent: int) -> Iterator[str]:
    name = str(folder.relative_to(ROOT))
    note = _NOTES.get(name)
    about = note or _first_line(folder / "__init__.py")
    yield _line(indent, f"{folder.name}/", about)
    if note:
        return
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.name.startswith((".", "__init__", "__pycache__")):
            continue
        if path.is_dir():
            yield from _write_folder(path, indent + 2)
        else:
            told = _NOTES.get(str(path.relative_to(ROOT))) or _first_line(path)
            yield _line(indent + 2, path.name, told)


def _line(indent: int, name: str, about: str) -> str:
    return f"{' ' * indent}{name:<{34 - indent}}{about}".rstrip()


def _first_line(path: Path) -> str:
    if path.suffix != ".py" or not path.exists():
        return ""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0]


def replace_tree(readme: str) -> str:
    """Put the tree as it is now into the README's text."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + write_tree() + after


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(replace_tree(path.read_text(encoding="utf-8")), encoding="utf-8")
