"""What README and docs say is there, is there."""

from __future__ import annotations

import re

from typer.main import get_command

from flows.cli import app
from flows.configuration.load import list_profiles
from tests.support.readme_tree import replace_tree
from tests.support.simulator import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))]


def test_the_tree_is_the_tree() -> None:
    assert replace_tree(README) == README, "run `make tree`"


def test_every_command_that_is_told_of_exists() -> None:
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    told = {name for page in PAGES for name in re.findall(r"`draftmill ([a-z][a-z-]*)", page)}
    assert told <= commands
    assert commands - {"servers"} <= told


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_profile_is_told_of() -> None:
    for name in list_profiles():
        assert name in README
