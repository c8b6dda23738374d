"""CUDA wheels of versions that do not go together: how each shows, and the pin that mends it.

With the real wheels, nvcc and g++; kernels are compiled and linked for SM120, and not run.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tests.support.cuda import (
    WHEELS_13_0,
    WHEELS_13_2,
    assert_mended,
    compiles,
    follow,
    forget_machine,
    make_servers,
    write_sources,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86-64"),
]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_machine(monkeypatch)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "sources")


# The wheels, whether a trivial kernel and one with cuda::std compile, and the message.
ROWS = {
    "nvcc newer than the runtime's headers": (
        WHEELS_13_2 | {"nvidia-cuda-runtime": "13.0.96"},
        (True, False),
        "CUDA compiler and CUDA toolkit headers are incompatible",
    ),
    "the runtime's headers newer than nvcc": (
        WHEELS_13_0 | {"nvidia-cuda-runtime": "13.2.86"},
        (True, False),
        "CUDA compiler and CUDA toolkit headers are incompatible",
    ),
    "crt of another version": (
        WHEELS_13_2 | {"nvidia-cuda-crt": "13.0.88"},
        (False, False),
        "__cudaLaunch",
    ),
    "nvcc newer than nvvm": (
        WHEELS_13_2 | {"nvidia-nvvm": "13.0.88"},
        (False, False),
        "__cudaLaunch",
    ),
    "nvvm newer than nvcc": (
        WHEELS_13_0 | {"nvidia-nvvm": "13.2.86"},
        (False, False),
        "Unsupported .version",
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_mix_of_versions_is_found_pinned_and_composed(
    row: str, tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels, expected, message = ROWS[row]
    servers = make_servers(tmp_path / "servers", wheels, with_pip=True)
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    trivial = compiles(servers.home, sources / "trivial.cu")
    std = compiles(servers.home, sources / "std.cu")
    assert (trivial == "", std == "") == expected, trivial + std
    assert message in std
    facts, found = servers.examine()
    assert found["cuda_coherence"].status == "fail"
    probe = found["cuda_probe"]
    assert probe.status == "fail"
    assert probe.fix is not None
    assert probe.fix.id == "coherent_cuda_wheels"
    # A private home of a mix would be a mix: pin first, compose second.
    refused, _ = servers.repair(facts)
    assert (refused.status, refused.what.startswith("pin first")) == ("refused", True)
    follow(found["cuda_coherence"].fix)
    verdicts = assert_mended(servers)
    assert verdicts["cuda_coherence"].status == "ok"


@pytest.mark.parametrize("cccl", ["13.0.50", "13.2.86"])
def test_an_older_or_newer_cccl_is_no_fault(
    cccl: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = make_servers(tmp_path / "servers", WHEELS_13_0 | {"nvidia-cuda-cccl": cccl})
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    verdicts = assert_mended(servers)
    assert verdicts["cuda_coherence"].status == verdicts["cccl_coherence"].status == "ok"
