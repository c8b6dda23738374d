"""What breaks CUDA environments, with the real wheels, nvcc and g++: reproduced, found and mended.

No card is needed: kernels are compiled and linked for SM120, and not run.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.environment.launch_env import launch_environment
from tasks.environment.toolkit_facts import read_toolkit
from tests.support.cuda import (
    WHEELS_13_0,
    Servers,
    add_wheels,
    assert_mended,
    attempt,
    compiles,
    forget_machine,
    make_servers,
    run,
    write_sources,
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheels are for x86-64"),
]

FLASHINFER = {"flashinfer-python": "0.6.11.post1"}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_machine(monkeypatch)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "sources")


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The coherent wheels of CUDA 13.0, CCCL included, as the pin of the project brings them."""
    yield make_servers(tmp_path_factory.mktemp("complete") / "servers", WHEELS_13_0)


def test_without_cccl_fp16_does_not_compile_and_a_trivial_kernel_lies(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {name: pin for name, pin in WHEELS_13_0.items() if name != "nvidia-cuda-cccl"}
    servers = make_servers(tmp_path / "servers", wheels)
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    assert compiles(servers.home, sources / "trivial.cu") == ""
    assert "nv/target: No such file or directory" in compiles(servers.home, sources / "fp16.cu")
    facts, found = servers.examine()
    assert found["nv_target"].status == "fail"
    assert found["cuda_probe"].status == "fail"
    assert "nv/target" in found["cuda_probe"].summary
    # Nothing to compose CCCL from: said, and nothing is changed.
    refused, _ = servers.repair(facts)
    assert (refused.status, "at one version" in refused.what) == ("refused", True)
    assert not servers.cuda_dir.exists()
    # flashinfer brings a whole CCCL of its own.
    add_wheels(servers, FLASHINFER)
    assert_mended(servers, facts)
    home = Path(launch_environment(servers.cuda_dir)["CUDA_HOME"])
    assert compiles(home, sources / "fp16.cu") == ""


def test_paths_mend_nvcc_and_only_some_of_them_the_hosts_compiler(
    tmp_path: Path, sources: Path, complete: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {name: pin for name, pin in WHEELS_13_0.items() if name != "nvidia-cuda-cccl"}
    servers = make_servers(tmp_path / "servers", wheels)
    cccl = str(complete.home / "include" / "cccl")
    fp16 = sources / "fp16.cu"
    assert "nv/target" in compiles(servers.home, fp16, step="-E")
    for flags in (("-I", cccl), ("-isystem", cccl)):
        assert compiles(servers.home, fp16, *flags, step="-E") == ""
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    for name, value, host in (
        ("NVCC_APPEND_FLAGS", f"-I{cccl}", "fail"),
        ("NVCC_PREPEND_FLAGS", f"-I{cccl}", "fail"),
        ("CPATH", cccl, "ok"),
        ("CPLUS_INCLUDE_PATH", cccl, "ok"),
    ):
        assert compiles(servers.home, fp16, step="-E", **{name: value}) == ""
        argv = ("g++", "-E", "-o", "/dev/null", str(sources / "host.cpp"))
        assert (attempt(*argv, **{name: value}).returncode == 0) == (host == "ok")
        seen = read_toolkit({"CUDA_HOME": str(servers.home), name: value}, None, {}, None)
        assert seen is not None
        assert (seen.has_nv_target, seen.has_host_cccl) == (True, host == "ok"), name
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-I{cccl}")
    _, found = servers.examine()
    assert (found["nv_target"].status, found["host_cccl"].status) == ("ok", "fail")


def test_the_complete_wheels_fail_the_hosts_compiler_and_the_linker(
    tmp_path: Path, sources: Path, complete: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = complete.home
    monkeypatch.setenv("CUDA_HOME", str(home))
    include = ("-I", str(home / "include"))
    missing = attempt("g++", "-E", *include, "-o", "/dev/null", str(sources / "host.cpp"))
    assert "cuda/std/type_traits: No such file" in missing.stderr
    # With a lib64, nvcc links the static runtime by itself: that it links one lies, too.
    linked = tmp_path / "linked"
    (linked / "bin").mkdir(parents=True)
    places = {"include": "include", "nvvm": "nvvm", "lib64": "lib"}
    for name, target in places.items():
        (linked / name).symlink_to(home / target)
    for entry in (home / "bin").iterdir():
        (linked / "bin" / entry.name).symlink_to(entry)
    assert "cannot find -lcudart_static" in compiles(home, sources / "trivial.cu", step="-link")
    assert compiles(linked, sources / "trivial.cu", step="-link") == ""
    there = (f"-L{linked}/lib64", "-lcudart", "-x", "c++", "/dev/null")
    assert "cannot find -lcudart" in attempt("g++", "-shared", *there).stderr
    shared = ("-shared", "-fPIC", *include, f"-L{home}/lib64", f"-L{home}/lib64/stubs")
    for library in ("-lcudart", "-lcuda"):
        argv = ("g++", *shared, "-o", "/dev/null", str(sources / "driver.cpp"), library)
        assert f"cannot find {library}" in attempt(*argv).stderr
    facts, found = complete.examine()
    failing = {check for check in found if found[check].status == "fail"}
    assert {"host_cccl", "libcudart", "libcuda", "cuda_probe"} <= failing
    assert found["cuda_coherence"].status == found["nv_target"].status == "ok"
    assert_mended(complete, facts)


def test_an_empty_libcuda_links_and_cannot_be_loaded(
    tmp_path: Path, sources: Path, complete: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setenv("CUDA_HOME", str(complete.home))
    if not launch_environment(complete.cuda_dir):
        assert_mended(complete)
    whole = Path(launch_environment(complete.cuda_dir)["CUDA_HOME"])
    shutil.copytree(whole, broken, symlinks=True)
    (broken / "home.json").unlink()
    stub = broken / "lib64" / "stubs" / "libcuda.so"
    run("g++", "-shared", "-x", "c", "-Wl,-soname,libcuda.so.1", "-o", str(stub), "/dev/null")
    include = ("-I", str(broken / "include"))
    out = tmp_path / "driver.so"
    built = ("g++", "-shared", "-fPIC", *include, "-o", str(out), str(sources / "driver.cpp"))
    run(*built, "-Wl,--as-needed", f"-L{broken}/lib64/stubs", "-lcuda")
    assert b"libcuda.so.1\0" not in out.read_bytes()
    with pytest.raises(OSError, match="undefined symbol: cuDeviceGet"):
        ctypes.CDLL(str(out), mode=0x2)  # RTLD_NOW
    monkeypatch.setenv("CUDA_HOME", str(broken))
    servers = Servers(complete.folder, tmp_path / "home" / "cuda")
    facts, found = servers.examine()
    assert facts.toolkit is not None
    assert facts.toolkit.libcuda == "empty"
    assert (found["libcuda"].status, "empty" in found["libcuda"].summary) == ("fail", True)
    assert_mended(servers, facts)
    mended = launch_environment(servers.cuda_dir)["CUDA_HOME"]
    run(*built, "-Wl,--as-needed", f"-L{mended}/lib64/stubs", "-lcuda")
    assert b"libcuda.so.1\0" in out.read_bytes()


def test_libcudacxx_alone_over_an_older_cub_fails_and_all_three_move_together(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = make_servers(tmp_path / "servers", WHEELS_13_0 | FLASHINFER)
    overlay = servers.site_packages / "flashinfer" / "data" / "cccl" / "libcudacxx" / "include"
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    monkeypatch.setenv("CPATH", str(overlay))
    assert "error" in compiles(servers.home, sources / "cub.cu", step="-ptx")
    facts, found = servers.examine()
    assert facts.toolkit is not None
    assert facts.toolkit.cccl == {"cub": "3.0.1", "libcudacxx": "3.3.2", "thrust": "3.0.1"}
    assert found["cccl_coherence"].status == "fail"
    assert_mended(servers, facts)
    home = Path(launch_environment(servers.cuda_dir)["CUDA_HOME"])
    assert compiles(home, sources / "cub.cu", step="-ptx") == ""


JIT = """
import sys, tvm_ffi.cpp
source = '''
#include <cuda_fp16.h>
__global__ void twice(__half *x) { x[0] = __hadd(x[0], x[0]); }
void launch(int64_t x) { twice<<<1, 1>>>(reinterpret_cast<__half *>(x)); }
'''
print(tvm_ffi.cpp.build_inline(
    "twice", cuda_sources=source, functions=["launch"], build_directory=sys.argv[1]))
"""


def test_kernels_that_sglang_compiles_through_tvm_ffi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = {name: pin for name, pin in WHEELS_13_0.items() if name != "nvidia-cuda-cccl"}
    jit = {"apache-tvm-ffi": "0.1.15.post2", "ninja": "1.13.0", "typing-extensions": "4.15.0"}
    servers = make_servers(tmp_path / "servers", wheels | jit | FLASHINFER)
    monkeypatch.setenv("CUDA_HOME", str(servers.home))
    path = f"{servers.folder}/bin:/usr/bin:/bin"
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    argv = (servers.python, "-c", JIT)
    broken = attempt(*argv, str(first), PATH=path, TVM_FFI_CUDA_ARCH_LIST="12.0")
    assert broken.returncode != 0
    assert "nv/target: No such file or directory" in broken.stderr + broken.stdout
    assert_mended(servers)
    environ = launch_environment(servers.cuda_dir)
    assert environ["TVM_FFI_CUDA_ARCH_LIST"] == "12.0"
    run(*argv, str(second), PATH=path, **environ)
    assert list(second.rglob("*.so"))
