"""The smallest real wheels: headers and runtime of CUDA 13.0 against g++, without nvcc.

2.4 MB, through the package index's ordinary client; the wheels with nvcc are in tests/real/.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from tasks.environment.compile_probe import find_host_compiler, run_probe
from tasks.environment.toolkit_facts import read_toolkit
from tests.support.cuda import Servers, add_wheels, make_servers

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("g++") is None, reason="needs x86-64 and g++"
)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Servers:
    wheels = {"nvidia-cuda-runtime": "13.0.96", "nvidia-cuda-crt": "13.0.88"}
    return make_servers(tmp_path_factory.mktemp("wheels") / "servers", wheels)


def probe(home: Path) -> tuple[str, str]:
    """The step of the probe that failed, and its message."""
    compiler = find_host_compiler({"PATH": "/usr/bin:/bin"})
    environ = {"PATH": "/usr/bin:/bin"}
    failed = run_probe(home, "sm_120", environ, host_compiler=compiler).failed
    assert failed is not None
    return failed.name, failed.stderr


def test_the_real_headers_lack_nv_target_and_the_real_runtime_does_not_link(
    servers: Servers, tmp_path: Path
) -> None:
    facts = read_toolkit({"CUDA_HOME": str(servers.home)}, servers.site_packages, {}, None)
    assert facts is not None
    assert facts.versions == {"runtime": "13.0", "driver_api": "13.0"}
    assert (facts.has_nv_target, facts.has_host_cccl, facts.has_cudart_link) == (False,) * 3
    assert facts.libcuda == "absent"
    step, message = probe(servers.home)
    assert (step, "nv/target: No such file or directory" in message) == ("host headers", True)
    add_wheels(servers, {"nvidia-cuda-cccl": "13.0.85"})
    facts = read_toolkit({"CUDA_HOME": str(servers.home)}, servers.site_packages, {}, None)
    assert facts is not None
    assert (facts.has_nv_target, facts.has_host_cccl) == (True, False)
    assert set(facts.cccl.values()) == {"3.0.1"}
    # With CCCL where g++ looks, what is left is the linker.
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(servers.home / "include", home / "include", symlinks=True)
    shutil.copytree(home / "include" / "cccl", home / "include", dirs_exist_ok=True)
    (home / "lib64").symlink_to(servers.home / "lib")
    step, message = probe(home)
    assert (step, "cannot find -lcudart" in message) == ("link", True)
    assert "cannot find -lcuda:" in message
