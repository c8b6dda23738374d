"""Prefect's own pages in a real browser: the form that starts a run, and what a run leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from flows.config import ExpansionConfig
from tests.support.browser import Visit, open_browser, visit
from tests.support.cli import SECONDS, Cli
from tests.support.hostile_run import MODEL, run_hostile, write_hostile_config
from tests.support.prefect_server import start_prefect_server
from tests.support.simulator import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

# What the form shows as boxes within boxes, by its path in the schema.
ROOMS = ("model", "sampling", "extraction", "serving", "generation", "gates", "tokens", "store")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a server with its pages, where all flows are deployed and one run has ended."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "server").mkdir()
    with start_prefect_server(folder / "server", pages=True) as url:
        cli = Cli(folder / "home", {"PREFECT_API_URL": url})
        config = write_hostile_config(folder)
        deploying = subprocess.Popen(
            [sys.executable, "-m", "deployments.deploy", str(config)],
            env=cli.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            run_hostile(cli, folder)
            told, _ = deploying.communicate(timeout=SECONDS)
        finally:
            deploying.kill()
            deploying.wait()
        assert deploying.returncode == 0, told
        yield url


# After the run: while the browser is there, this thread can run no coroutine of another's.
@pytest.fixture(scope="module")
def browser(api: str) -> Iterator[Browser]:
    del api
    with open_browser() as opened:
        yield opened


def find_page(api: str, path: str) -> str:
    """Give the address of a page of the server's own choice of its two sets of pages."""
    settings = httpx.get(f"{api.removesuffix('/api')}/ui-settings", timeout=30).json()
    base = settings[f"{settings['default_ui']}_base_url"].strip("/")
    return f"{api.removesuffix('/api')}/{base}/{path}"


def assert_tame(visited: Visit) -> None:
    """Hold that nothing of what strangers wrote ran on a page of Prefect's, or asked for things."""
    assert not visited.dialogs
    assert not [url for url in visited.requests if "evil.example" in url]
    assert visited.page.locator("img[src=x], [onerror]").count() == 0


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
    api: str, browser: Browser
) -> None:
    deployment = httpx.get(f"{api}/deployments/name/expand/box", timeout=30).json()
    url = find_page(api, f"deployments/deployment/{deployment['id']}/run")
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
        fields = page.locator("input, textarea")
        values = fields.evaluate_all("all => all.map(each => each.value)")
        assert {"hostile", MODEL, "8192"} <= set(values)
        assert_tame(visited)


def test_the_artifacts_of_a_run_open(api: str, browser: Browser) -> None:
    latest = httpx.post(f"{api}/artifacts/latest/filter", json={}, timeout=30).json()
    found = {artifact["key"]: artifact for artifact in latest}
    kinds = {"environment", "progress-hostile", "endpoints-hostile", "canary-hostile"}
    assert kinds | {"report-hostile", "composition-hostile"} <= set(found)
    with visit(browser, find_page(api, "artifacts")) as visited:
        for key in found:
            expect(visited.page.get_by_text(key, exact=True).first).to_be_visible()
        for artifact in found.values():
            visited.page.goto(find_page(api, f"artifacts/artifact/{artifact['latest_id']}"))
            assert_opened(visited.page, artifact)
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
