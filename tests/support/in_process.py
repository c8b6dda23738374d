"""The main job in the test's own process: imports are paid once, errors come as they are."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.command_line.launch import FlowName
from flows.configuration.load import load_config
from tasks.settings import read_settings

# For the modules that use `run_here`: Prefect's client leaves its sockets to the garbage collector.
PREFECT_LEAVES_SOCKETS = pytest.mark.filterwarnings(
    "ignore:unclosed:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
RunHere = Callable[..., dict[str, Any]]


@pytest.fixture
def run_here(
    tmp_path: Path, prefect_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunHere]:
    """Give a function that runs a configuration against the real Prefect server."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.command_line.launch import run_expansion

    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    read_settings.cache_clear()

    def run(
        config: Path, sets: Sequence[str] = (), flow: FlowName = "expand", **of_source: str
    ) -> dict[str, Any]:
        loaded = load_config(str(config), sets).config
        try:
            with temporary_settings({PREFECT_API_URL: prefect_url}):
                return asyncio.run(run_expansion(loaded, flow=flow, **of_source))
        finally:
            # Collected here, and not in the middle of another test.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()

    yield run
    read_settings.cache_clear()
