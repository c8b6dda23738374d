"""Every command that README and docs tell of, as they write it.

Enters: the pages. Leaves: the commands, each with the pages that tell of it. It exists so that a
test can hold that each of them is run by some test.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.support.simulator import ROOT

PROGRAMS = ("draftmill", "make", "prefect", "docker", "docker-compose", "systemctl", "python")
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "infra" / "policy" / "README.md",
)
_TREE = re.compile(r"<!-- tree -->.*<!-- /tree -->", re.S)
_BLOCK = re.compile(r"^(?: {4,}[^\n]*|```.*?^```)$", re.M | re.S)
# What stands after a command on its line in a block: a comment, or what it is for.
_GLOSS = re.compile(r"\s{2,}.*|\s+#.*")


def find_documented() -> dict[str, list[str]]:
    """Find the commands, each with the names of its pages."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for page in PAGES:
        for command in _find_on(_TREE.sub("", page.read_text(encoding="utf-8"))):
            if page.name not in found[command]:
                found[command].append(page.name)
    return dict(sorted(found.items()))


def _find_on(text: str) -> Iterator[str]:
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.M | re.S)
    lines += [line for block in fenced for line in block.splitlines()]
    blocks = (_GLOSS.sub("", line.strip()) for line in lines)
    inline = re.findall(r"`([^`]+)`", _BLOCK.sub("", text))
    for command in (*blocks, *(" ".join(each.split()) for each in inline)):
        # One word names a program, and commands nothing.
        if command.split(" ")[0] in PROGRAMS and " " in command:
            yield command


def list_words(command: str) -> list[str]:
    """List what of a command must be written as it is: neither values nor words to fill in."""
    return [word for word in command.split()[1:] if re.fullmatch(r"-{0,2}[a-z][a-z-]*", word)]


def read_test(place: str) -> str:
    """Read all the texts in the module of a test, which must be there.

    Args:
        place: `tests/real/test_x.py::test_y`.
    """
    path, _, name = place.partition("::")
    tree = ast.parse(Path(ROOT, path).read_text(encoding="utf-8"))
    functions = [
        node for node in tree.body if isinstance(node, (ast.FunctionDef | ast.AsyncFunctionDef))
    ]
    assert name in {function.name for function in functions}, f"{place} is not there"
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return " ".join(text for text in texts if isinstance(text, str))
