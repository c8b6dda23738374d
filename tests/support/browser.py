"""A real browser: Debian's headless Chromium, and what it makes of a page.

    with open_browser() as browser, visit(browser, url, width=390, scheme="dark") as visited:
        visited.page.get_by_role("heading")
        assert not visited.strangers() and not find_violations(visited.page)

Enters: an address. Leaves: the page, and all that it did unasked: requests, dialogs, errors.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

Scheme = Literal["light", "dark"]
WAIT_MS = 60_000
# What the verdict of axe calls a fault; "moderate" and "minor" are advice.
_FAULTS = ("serious", "critical")


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
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']} ({each['impact']}, {len(each['nodes'])}x): {each['nodes'][0]['html'][:200]}"
        for each in found
        if each["impact"] in _FAULTS
    ]


def open_all(page: Page) -> None:
    """Open whatever is folded, so that it is looked at as well."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")


def scrolls_sideways(page: Page) -> bool:
    """Tell whether the page is wider than its window."""
    return bool(
        page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    )
