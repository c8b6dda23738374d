"""The servers under contract: the simulator at both versions, and a real one where it is given.

DRAFTMILL_CONTRACT_URL adds a running real server (launched with --reasoning-parser qwen3,
--tool-call-parser qwen3_coder, --enable-metrics and a context length of 1,024 or more).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.contract.target import Target, inspect_server
from tests.support.simulator import start_simulator

REAL_URL = os.environ.get("DRAFTMILL_CONTRACT_URL")
SERVERS = ["simulator-0.5.12", "simulator-0.5.23"]
if REAL_URL:
    SERVERS.append("real")


@pytest.fixture(scope="session", params=SERVERS)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    if request.param == "real":
        assert REAL_URL is not None
        yield inspect_server(REAL_URL)
        return
    version = request.param.removeprefix("simulator-")
    flags = {"sim_version": version, "enable_metrics": True, "context_length": 1024}
    with start_simulator(1, sim_time_scale=0.05, sim_mean_tokens=120, **flags) as [server]:
        target = inspect_server(server.base_url)
        assert target.version == version
        yield target
