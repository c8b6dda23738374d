"""In a real browser: the report and the canary's page, and what Prefect's own pages make of a run.

One run over hostile rows against a real Prefect server with its pages, on which all is deployed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from flows.config import ExpansionConfig
from tasks.report.page import render_canary, render_report
from tests.support.browser import (
    Scheme,
    assert_inert,
    assert_tame,
    find_page,
    find_violations,
    open_all,
    open_browser,
    read_colours,
    scrolls_sideways,
    visit,
)
from tests.support.cli import SECONDS, Cli
from tests.support.figures import PAYLOADS, make_canary, poison
from tests.support.hostile_run import MODEL, N_ROWS, ROWS, SOURCE, run_hostile, write_config
from tests.support.simulator import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

PHONE, DESK = 390, 1280
VIEWS: list[tuple[int, Scheme]] = [(PHONE, "light"), (PHONE, "dark"), (DESK, "dark")]
PAGES = ("report", "canary")
# What the form shows as boxes within boxes, by its path in the schema.
ROOMS = ("model", "sampling", "extraction", "serving", "generation", "gates", "tokens", "store")
# Whether a field of a form has a value, in the browser's own language.
HOLDS = """value => Array.from(document.querySelectorAll('input, textarea'))
    .some(each => each.value === value)"""
_MOST_BYTES = 5_000_000


@dataclass(frozen=True)
class Field:
    """Prefect's pages where all flows are deployed, and what one run has left.

    Attributes:
        api: Of the server.
        pages: The addresses of both pages of the run.
    """

    api: str
    pages: dict[str, str]


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> Field:
    folder = tmp_path_factory.mktemp("hostile")
    cli = Cli(folder / "home", {"PREFECT_API_URL": prefect_url})
    config = write_config(folder)
    deploying = subprocess.Popen(
        [sys.executable, "-m", "deployments.deploy", str(config)],
        env=cli.environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        summary = run_hostile(cli, folder)
        told, _ = deploying.communicate(timeout=SECONDS)
    finally:
        deploying.kill()
        deploying.communicate()
    assert deploying.returncode == 0, told
    assert summary["counts"]["n_conversations"] == N_ROWS
    return Field(prefect_url, {name: summary[name] for name in PAGES})


@pytest.fixture(scope="module")
def pages(field: Field) -> dict[str, str]:
    return field.pages


# After the run: while the browser is there, this thread can run no coroutine of another's.
@pytest.fixture(scope="module")
def browser(field: Field) -> Iterator[Browser]:
    del field
    with open_browser() as opened:
        yield opened


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


@pytest.mark.parametrize("name", PAGES)
def test_it_is_accessible_and_fits_its_window(
    browser: Browser, pages: dict[str, str], name: str
) -> None:
    with visit(browser, pages[name]) as visited:
        page = visited.page
        for is_open in (False, True):
            if is_open:
                open_all(page)
            for width, scheme in VIEWS:
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                assert not scrolls_sideways(page), (width, scheme, is_open)
                paper, ink = read_colours(page)
                assert (paper < ink) == (scheme == "dark")
                if is_open:
                    assert find_violations(page) == [], (width, scheme)


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


def list_descriptions(room: str) -> list[str]:
    """List what the form must say of a room's fields, from the configuration's own schema."""
    schema = ExpansionConfig.model_json_schema()
    name = next(iter(find_references(schema["properties"][room])))
    fields = schema["$defs"][name]["properties"].values()
    return [field["description"] for field in fields]


def find_references(field: dict[str, Any]) -> list[str]:
    """Give the models that a field may hold."""
    choices = [field, *field.get("anyOf", ()), *field.get("allOf", ())]
    return [each["$ref"].rpartition("/")[2] for each in choices if "$ref" in each]


def test_the_form_of_a_run_shows_every_nested_field_with_its_description(
    field: Field, browser: Browser
) -> None:
    deployment = httpx.get(f"{field.api}/deployments/name/expand/box", timeout=30).json()
    url = find_page(field.api, f"deployments/deployment/{deployment['id']}/run")
    with visit(browser, url) as visited:
        page = visited.page
        page.get_by_text("Sampling temperature.").first.wait_for()
        told = " ".join(page.locator("body").inner_text().split())
        for room in ROOMS:
            descriptions = list_descriptions(room)
            assert descriptions
            missing = [text for text in descriptions if " ".join(text.split()) not in told]
            assert not missing, f"{room}: {missing}"
            assert f"{room.capitalize()}Config" not in told, "a box is named by its field"
        assert "Field (Optional)" not in told
        # The top-level parameters of a trigger, and the defaults that `make deploy` filled in.
        assert "Run over this one source alone" in told
        for value in ("hostile", MODEL, "8192"):
            page.wait_for_function(HOLDS, arg=value)
        assert_tame(visited)


def test_the_artifacts_of_a_run_open(field: Field, browser: Browser) -> None:
    latest = httpx.post(f"{field.api}/artifacts/latest/filter", json={}, timeout=30).json()
    run_id = next(each["flow_run_id"] for each in latest if each["key"] == "report-hostile")
    found = {each["key"]: each for each in latest if each["flow_run_id"] == run_id}
    kinds = {"environment", "progress-hostile", "endpoints-hostile", "canary-hostile"}
    assert kinds | {"report-hostile", "composition-hostile"} <= set(found)
    with visit(browser, find_page(field.api, "artifacts")) as visited:
        page = visited.page
        for key in found:
            expect(page.get_by_text(key, exact=True).first).to_be_visible()
        # By links, as a person goes: a page that is loaded anew costs a second of the browser's.
        for key, artifact in found.items():
            page.locator(f"a[href$='/artifacts/key/{key}']").first.click()
            page.locator(f"a[href$='/artifacts/artifact/{artifact['latest_id']}']").first.click()
            assert_opened(page, artifact)
            page.go_back()
            page.go_back()
        assert_tame(visited)


def assert_opened(page: Page, artifact: dict[str, Any]) -> None:
    """Hold that a page shows what its artifact holds."""
    expect(page.get_by_text(artifact["description"]).first).to_be_visible(timeout=30_000)
    match artifact["type"]:
        case "table":
            rows = artifact["data"]
            rows = httpx.Response(200, text=rows).json() if isinstance(rows, str) else rows
            for column in rows[0]:
                expect(page.get_by_role("columnheader", name=column).first).to_be_visible()
            first = str(next(iter(rows[0].values())))
            expect(page.get_by_role("cell", name=first).first).to_be_visible()
        case "markdown":
            words = artifact["data"].split("**")[1]
            expect(page.get_by_text(words).first).to_be_visible()
        case "progress":
            expect(page.get_by_text("100%").first).to_be_visible()
        case other:
            pytest.fail(f"{artifact['key']} is of a kind that nobody looks at: {other}")
