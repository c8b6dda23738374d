"""The doctor on a box with a card: facts from the real driver, and the probe run on the card."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.environment.compile_probe import find_host_compiler
from tasks.environment.gpu_facts import read_nvml
from tasks.environment.kernel_facts import read_kernel_module
from tests.support.cuda import WHEELS_13_0, Servers, make_servers

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def driver() -> None:
    """Skip where there is no card, with what the driver said."""
    facts = read_nvml()
    if facts.error or not facts.gpus:
        pytest.skip(f"no GPU here: NVML says {facts.error or 'that there is none'}")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    if find_host_compiler({"PATH": "/usr/bin:/bin"}) is None:
        pytest.skip("no g++ here")
    return make_servers(tmp_path_factory.mktemp("servers") / "servers", WHEELS_13_0)


def test_the_driver_tells_what_the_checks_ask_for() -> None:
    facts = read_nvml()
    first = facts.gpus[0]
    assert int(facts.driver_version.split(".")[0]) >= 525
    assert facts.cuda_version is not None
    assert facts.cuda_version >= 12000
    assert first.capability is not None
    assert first.capability >= (7, 0)
    assert 0 <= first.memory_used_mib <= first.memory_total_mib
    assert first.bus_id
    assert len(facts.pairs) == len(facts.gpus) * (len(facts.gpus) - 1) // 2


def test_the_kernel_module_is_of_the_librarys_version() -> None:
    module = read_kernel_module()
    if not module:
        pytest.skip("this container shows no /proc/driver/nvidia/version")
    assert read_nvml().driver_version in module


def test_the_probe_runs_on_the_card_with_the_composed_home(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    facts, found = servers.examine()
    assert found["nvml"].status == found["gpus"].status == "ok"
    assert found["libcudart"].status == "fail"
    applied, verdicts = servers.repair(facts)
    assert applied.status == "applied", applied
    probe = verdicts["cuda_probe"]
    assert (probe.status, probe.summary.endswith("link, run")) == ("ok", True), probe
    assert Path(probe.evidence.command[0]) == Path(servers.python)
