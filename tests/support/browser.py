"""A real browser: Debian's headless Chromium, and what it makes of a page.

    with open_browser() as browser, visit(browser, url, width=390, scheme="dark") as visited:
        visited.page.get_by_role("heading")
        assert not visited.strangers() and not find_violations(visited.page)

Enters: an address. Leaves: the page, and all that it did unasked: requests, dialogs, errors.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import httpx
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

Scheme = Literal["light", "dark"]
WAIT_MS = 60_000
# What the verdict of axe calls a fault; "moderate" and "minor" are advice.
_FAULTS = ("serious", "critical")
_BIDI = re.compile("[\u200b-\u200f\u202a-\u202e\u2060-\u2069\x1b]")


@dataclass(slots=True)
class Visit:
    """A page that was opened, and what it did."""

    page: Page
    url: str
    requests: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def strangers(self) -> list[str]:
        """List the requests for anything but the page itself."""
        return [url for url in self.requests if url != self.url]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Run the browser for the time of a with block; no coroutine can run in this thread then."""
    chromium = shutil.which("chromium")
    assert chromium, "no Chromium is installed: apt-get install chromium"
    # Its sandbox refuses to be started by root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(
    browser: Browser,
    url: str,
    *,
    width: int = 1280,
    scheme: Scheme = "light",
    scripts: bool = True,
    policy: bool = True,
) -> Iterator[Visit]:
    """Open a page in a profile of its own.

    Args:
        browser: What `open_browser` gave.
        url: What to open.
        width: Of the window, in CSS pixels.
        scheme: What the reader's system prefers.
        scripts: Whether scripts may run.
        policy: Whether the page's content security policy holds; without it, what is inert is so
            by itself.
    """
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        java_script_enabled=scripts,
        bypass_csp=not policy,
    )
    context.set_default_timeout(WAIT_MS)
    try:
        page = context.new_page()
        visited = Visit(page, url)
        page.on("request", lambda request: visited.requests.append(request.url))
        page.on("pageerror", lambda error: visited.errors.append(str(error)))

        def dismiss(dialog: Dialog) -> None:
            visited.dialogs.append(dialog.message)
            dialog.dismiss()

        page.on("dialog", dismiss)
        page.goto(url)
        yield visited
    finally:
        context.close()


def find_violations(page: Page) -> list[str]:
    """Ask axe-core for the serious and critical faults, one line each, with the first element."""
    # Without a list of whatever is as it should be, which is most of a page.
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [
        f"{each['id']} ({each['impact']}, {len(each['nodes'])}x): {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in _FAULTS
    ]


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


def assert_tame(visited: Visit) -> None:
    """Hold that nothing of what strangers wrote ran on a page of Prefect's, or asked for things."""
    assert not visited.dialogs
    assert not [url for url in visited.requests if "evil.example" in url]
    assert visited.page.locator("img[src=x], [onerror]").count() == 0


def open_all(page: Page) -> None:
    """Open whatever is folded, so that it is looked at as well."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def scrolls_sideways(page: Page) -> bool:
    """Tell whether the page is wider than its window."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )


def read_colours(page: Page) -> tuple[int, int]:
    """Give how bright the page's ground and its text are, from 0 to 765."""
    names = ("background-color", "color")
    styles = [page.evaluate(f"getComputedStyle(document.body)['{name}']") for name in names]
    ground, text = (sum(map(int, re.findall(r"\d+", style)[:3])) for style in styles)
    return ground, text


def find_page(api: str, path: str) -> str:
    """Give the address of a page of the server's own choice of its two sets of pages."""
    settings = httpx.get(f"{api.removesuffix('/api')}/ui-settings", timeout=30).json()
    base = settings[f"{settings['default_ui']}_base_url"].strip("/")
    return f"{api.removesuffix('/api')}/{base}/{path}"
