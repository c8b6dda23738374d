"""Reports reach the store once and Prefect's artifacts, through a real Prefect API."""

from __future__ import annotations

import gc

import pytest
from prefect import flow
from prefect.artifacts import Artifact

from tasks.report.record import CanaryFigures, ReportFigures
from tasks.report.task import ReportContext, publish_canary, publish_report, report_context
from tasks.storage.layout import canary_key, report_key
from tasks.storage.store import ArtifactStore
from tests.support.figures import make_canary, make_report


# Prefect's client leaves the socket of its events to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("prefect_api")
async def test_a_report_is_published_once_and_shown_in_prefect(file_store: ArtifactStore) -> None:
    figures, canary = make_report(name="Autumn Mix"), make_canary(name="Autumn Mix")
    keys = await run_pages(file_store, figures, canary)
    assert keys == (report_key(2), canary_key())
    page = file_store.get(report_key(2)).decode()
    assert "15 of 1,000 conversations failed" in page
    shown = await Artifact.aget("report-autumn-mix")
    assert shown is not None
    assert "15 of 1,000 conversations failed" in str(shown.data)
    assert await Artifact.aget("canary-autumn-mix") is not None
    later = make_report(name="Autumn Mix", created_at="2027-01-01T00:00:00+00:00")
    await run_pages(file_store, later, canary)
    assert file_store.get(report_key(2)).decode() == page, "a page is written once"
    gc.collect()  # so that those sockets are closed while their warning is expected


async def run_pages(
    store: ArtifactStore, figures: ReportFigures, canary: CanaryFigures
) -> tuple[str, str]:
    @flow(name="publish-pages")
    async def pages() -> tuple[str, str]:
        report_context.set(ReportContext(store))
        return await publish_report(figures), await publish_canary(canary)

    return await pages()
