"""The report and the canary's page in a real browser: whole without a script, legible, inert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tasks.report.page import render_canary, render_report
from tests.support.browser import (
    Scheme,
    Visit,
    find_violations,
    open_all,
    open_browser,
    scrolls_sideways,
    visit,
)
from tests.support.cli import Cli
from tests.support.figures import PAYLOADS, make_canary, poison
from tests.support.hostile_run import MODEL, N_ROWS, ROWS, SOURCE, run_hostile

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PHONE, DESK = 390, 1280
PAGES = ("report", "canary")
_MOST_BYTES = 5_000_000
_BIDI = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\x1b]")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> dict[str, str]:
    """The addresses of both pages of a real run over hostile rows."""
    folder = tmp_path_factory.mktemp("hostile")
    summary = run_hostile(Cli(folder / "home", {"PREFECT_API_URL": prefect_url}), folder)
    assert summary["counts"]["n_conversations"] == N_ROWS
    return {name: summary[name] for name in PAGES}


# After the run: while the browser is there, this thread can run no coroutine of another's.
@pytest.fixture(scope="module")
def browser(pages: dict[str, str]) -> Iterator[Browser]:
    del pages
    with open_browser() as opened:
        yield opened


def assert_inert(visited: Visit) -> None:
    """Hold that nothing ran, nothing was asked for, and nothing could be."""
    assert not visited.dialogs
    assert not visited.strangers()
    assert not visited.errors
    page = visited.page
    for selector in ("script", "img", "iframe", "object", "embed", "link", "form", "base"):
        assert page.locator(selector).count() == 0, selector
    acting = """Array.from(document.querySelectorAll('*')).flatMap(each => [...each.attributes])
        .filter(each => each.name.startsWith('on') || /^\\s*javascript:/i.test(each.value))
        .filter(each => !/^aria-|^id$/.test(each.name)).map(each => each.name)"""
    assert page.evaluate(acting) == []
    assert not _BIDI.search(page.content())


def test_a_page_that_acts_is_found_out(browser: Browser, tmp_path: Path) -> None:
    """What the other tests stand on: the same look at a page that does all that is forbidden."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<html><body style='width: 2000px'><p style='color: #eee; background: #fff'>pale</p>"
        "<img src=http://127.0.0.1:9/x.png onerror='alert(1)'><script>nothing()</script>"
    )
    with visit(browser, bad.as_uri(), width=PHONE) as visited:
        visited.page.wait_for_load_state("networkidle")
        assert visited.dialogs == ["1"]
        assert visited.strangers() == ["http://127.0.0.1:9/x.png"]
        assert visited.errors
        assert scrolls_sideways(visited.page)
        faults = {line.split()[0] for line in find_violations(visited.page)}
        assert {"color-contrast", "image-alt", "html-has-lang"} <= faults


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (PHONE, "dark"), (DESK, "dark")])
@pytest.mark.parametrize("name", PAGES)
def test_it_is_accessible_and_fits_its_window(
    browser: Browser, pages: dict[str, str], name: str, width: int, scheme: Scheme
) -> None:
    with visit(browser, pages[name], width=width, scheme=scheme) as visited:
        assert not scrolls_sideways(visited.page)
        open_all(visited.page)
        assert not scrolls_sideways(visited.page)
        assert find_violations(visited.page) == []
        paper, ink = read_colours(visited.page)
        assert (paper < ink) == (scheme == "dark")


def read_colours(page: Page) -> tuple[int, int]:
    """Give how bright the page's ground and its text are, from 0 to 765."""
    names = ("background-color", "color")
    styles = [page.evaluate(f"getComputedStyle(document.body)['{name}']") for name in names]
    ground, text = (sum(map(int, re.findall(r"\d+", style)[:3])) for style in styles)
    return ground, text


@pytest.mark.parametrize("name", PAGES)
def test_it_is_read_without_a_script_and_without_a_network(
    browser: Browser, pages: dict[str, str], name: str
) -> None:
    with visit(browser, pages[name], scripts=False) as visited:
        page = visited.page
        assert not visited.strangers()
        assert page.get_by_role("main").count() == 1
        assert page.get_by_role("heading", level=1).count() == 1
        # What failed comes first, and that the answers are nobody's.
        first = page.get_by_role("main").inner_text()[:600].lower()
        assert re.search(r"all \d+ conversations|none failed", first), first
        assert "simulated" in first
        folded = page.locator("details:not([open])", has=page.locator("mark")).last
        assert not folded.locator("mark").first.is_visible()
        folded.locator("summary").click()
        opened = page.locator("details[open]", has=page.locator("mark")).last
        assert opened.locator("mark").first.is_visible()
        assert len(page.pdf()) > 10_000


def test_the_report_tells_what_the_run_did(browser: Browser, pages: dict[str, str]) -> None:
    assert len(Path(pages["report"].removeprefix("file://")).read_bytes()) < _MOST_BYTES
    with visit(browser, pages["report"]) as visited:
        page = visited.page
        headings = " | ".join(page.get_by_role("heading").all_inner_texts()).lower()
        for told in ("accounting", "composition", "gates", "samples", "lineage", "settings"):
            assert told in headings, headings
        rows = page.get_by_role("row").all_inner_texts()
        assert any(re.match(rf"Conversations\s+{N_ROWS}\b", row.strip()) for row in rows), rows
        assert any(row.strip().startswith(SOURCE) for row in rows), rows


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tokens_are_told_apart_by_their_mask(
    browser: Browser, pages: dict[str, str], scheme: Scheme
) -> None:
    with visit(browser, pages["report"], scheme=scheme) as visited:
        open_all(visited.page)
        mark = visited.page.locator("mark").first
        ground = "each => getComputedStyle(each).backgroundColor"
        sampled = mark.evaluate(ground)
        given = mark.locator("xpath=preceding-sibling::*").first.evaluate(ground)
        assert sampled not in (given, "rgba(0, 0, 0, 0)", "transparent")
        # Nor by colour alone.
        assert mark.evaluate("each => getComputedStyle(each).borderBottomStyle") == "solid"


@pytest.mark.parametrize("policy", [True, False])
@pytest.mark.parametrize("name", PAGES)
def test_hostile_rows_do_nothing(
    browser: Browser, pages: dict[str, str], name: str, policy: bool
) -> None:
    with visit(browser, pages[name], policy=policy) as visited:
        open_all(visited.page)
        visited.page.wait_for_load_state("networkidle")
        assert_inert(visited)
        assert "taken" not in visited.page.title()
        told = visited.page.locator("body").inner_text()
        assert SOURCE in told
        # They are shown as what they are, and not left out.
        shown = [row in told for row in ROWS[:3]]
        assert any(shown) if name == "report" else all(shown)
        assert name != "report" or MODEL in told


@pytest.mark.parametrize("name", PAGES)
def test_whatever_a_stranger_wrote_wherever_it_stands_does_nothing(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    payload = " ".join(PAYLOADS)
    hostile = poison(payload)
    canary = make_canary(name=payload, samples=hostile.samples, gates=hostile.gates)
    path = tmp_path / f"{name}.html"
    html = render_report(hostile) if name == "report" else render_canary(canary)
    path.write_text(html, encoding="utf-8")
    with visit(browser, path.as_uri(), width=PHONE, policy=False) as visited:
        open_all(visited.page)
        assert_inert(visited)
        assert not scrolls_sideways(visited.page)
