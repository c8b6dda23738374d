"""Makes the shared fixtures known to every test, and keeps one module's leavings from the next."""

from __future__ import annotations

import gc
import warnings

import pytest
from hypothesis import settings

# A slow moment of a busy machine is no fault of what is tested.
settings.register_profile("draftmill", deadline=None)
settings.load_profile("draftmill")

pytest_plugins = [
    "tests.support.fixtures",
    "tests.support.in_process",
    "tests.support.operated",
]

_PREFECT = {"prefect_url", "prefect_api", "run_here"}


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect the sockets that Prefect's client left open, before another module is blamed."""
    used = _PREFECT.intersection(getattr(item, "fixturenames", ()))
    if used and (nextitem is None or nextitem.path != item.path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
