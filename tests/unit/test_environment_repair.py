"""The private CUDA home: what it is made of, and that it is there whole, or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.environment.box_facts import BoxFacts
from tasks.environment.checks import judge
from tasks.environment.compose import CannotComposeError, HomePlan, is_whole, plan_home
from tasks.environment.cuda_stub import list_functions
from tasks.environment.launch_env import launch_environment
from tasks.environment.mend import repair_box
from tasks.environment.repair import apply_home, undo_home
from tasks.environment.toolkit_facts import read_toolkit
from tests.support.boxes import make_facts, make_profile, make_python, make_toolkit
from tests.support.toolkits import (
    VERSIONS,
    cccl_files,
    plan_of,
    snapshot,
    write_driver,
    write_flashinfer,
    write_wheels,
)

KILLED = 9


@pytest.fixture
def site(tmp_path: Path) -> Path:
    write_wheels(tmp_path / "site")
    return tmp_path / "site"


@pytest.fixture
def plan(site: Path, tmp_path: Path) -> HomePlan:
    return plan_of(site, write_driver(tmp_path / "driver"))


def test_a_home_looks_as_compilers_expect_one(plan: HomePlan, site: Path, tmp_path: Path) -> None:
    before = snapshot(site)
    assert apply_home(tmp_path / "cuda", plan)
    home = tmp_path / "cuda" / "current"
    assert is_whole(home)
    for name in (
        *("bin/nvcc", "nvvm/bin/cicc", "lib64/libcudart.so", "lib64/libcudart.so.13"),
        *("lib/libcudart.so", "lib64/stubs/libcuda.so", "include/cuda.h"),
        *("include/nv/target", "include/cccl/nv/target", "include/cub/version.cuh"),
        *("include/cuda/std/type_traits", "include/cccl/thrust/version.h"),
    ):
        assert (home / name).exists(), name
    assert snapshot(site) == before, "the wheels are never written to"
    facts = read_toolkit({"CUDA_HOME": str(home)}, site, {}, tmp_path / "cuda")
    assert facts is not None
    assert (facts.origin, facts.libcuda) == ("composed", "whole")
    assert facts.has_nv_target
    assert facts.has_host_cccl
    assert facts.has_cudart_link
    assert facts.hash == plan.toolchain
    assert not apply_home(tmp_path / "cuda", plan), "it is the current one already"


def test_the_launch_is_told_of_the_home_and_keeps_its_cache_by_toolchain(
    plan: HomePlan, tmp_path: Path
) -> None:
    cuda_dir = tmp_path / "cuda"
    assert launch_environment(cuda_dir) == {}
    apply_home(cuda_dir, plan)
    found = launch_environment(cuda_dir)
    assert found["CUDA_HOME"] == found["CUDA_PATH"] == str((cuda_dir / "current").resolve())
    assert found["FLASHINFER_WORKSPACE_BASE"] == str(cuda_dir / "jit" / plan.toolchain)
    assert found["TVM_FFI_GPU_BACKEND"] == "cuda"
    assert found["FLASHINFER_CUDA_ARCH_LIST"] == "12.0f"
    assert found["TVM_FFI_CUDA_ARCH_LIST"] == "12.0"


def test_headers_and_libraries_of_all_wheels_are_united(site: Path, tmp_path: Path) -> None:
    (site / "nvidia" / "curand" / "include").mkdir(parents=True)
    (site / "nvidia" / "curand" / "include" / "curand_kernel.h").touch()
    (site / "nvidia" / "curand" / "lib").mkdir()
    (site / "nvidia" / "curand" / "lib" / "libcurand.so.10").touch()
    alone = {"CUDA_HOME": str(site / "nvidia" / "cu13")}
    before = read_toolkit(alone, site, {}, None)
    assert before is not None
    assert before.missing_headers == ("curand_kernel.h",)
    apply_home(tmp_path / "cuda", plan_of(site, write_driver(tmp_path / "driver")))
    home = tmp_path / "cuda" / "current"
    assert (home / "include" / "curand_kernel.h").exists()
    assert (home / "lib64" / "libcurand.so").exists()
    after = read_toolkit({"CUDA_HOME": str(home)}, site, {}, None)
    assert after is not None
    assert after.missing_headers == ()


def test_cccl_comes_whole_from_one_place(tmp_path: Path) -> None:
    site, driver = tmp_path / "site", write_driver(tmp_path / "driver")
    wheels = write_wheels(site, cccl=False)
    with pytest.raises(CannotComposeError, match="at one version"):
        plan_of(site, driver)
    root = write_flashinfer(site)
    plan = plan_of(site, driver)
    assert plan.cccl_from == root
    assert plan.links["include/nv"] == root / "libcudacxx" / "include" / "nv"
    # The wheels' own is taken before; a mixture never is.
    for path, text in cccl_files("3.0.1").items():
        (wheels / "include" / "cccl" / path).parent.mkdir(parents=True, exist_ok=True)
        (wheels / "include" / "cccl" / path).write_text(text)
    assert plan_of(site, driver).cccl_from == wheels / "include" / "cccl"
    newer = cccl_files("3.3.2")["cuda/std/__cccl/version.h"]
    (wheels / "include" / "cccl" / "cuda" / "std" / "__cccl" / "version.h").write_text(newer)
    assert plan_of(site, driver).cccl_from == root


def test_without_nvcc_or_a_libcuda_there_is_nothing_to_compose(site: Path, tmp_path: Path) -> None:
    toolkit = site / "nvidia" / "cu13"
    with pytest.raises(CannotComposeError, match=r"no g\+\+"):
        plan_home(toolkit, site, VERSIONS, {}, compiler=None, capability=None)
    with pytest.raises(CannotComposeError, match="no bin/nvcc"):
        plan_home(tmp_path, site, VERSIONS, {}, compiler=None, capability=None)


def test_the_stub_has_every_function_that_a_program_may_ask_for() -> None:
    header = (
        "#define cuCtxCreate cuCtxCreate_v4\n"
        "#define cuMemcpy __CUDA_API_PTDS(cuMemcpy)\n"
        "#define CU_VERSION 1\n"
        "CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal);\n"
        "CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n);\n"
    )
    assert list_functions(header) == ["cuCtxCreate_v4", "cuDeviceGet", "cuMemcpy"]


def test_a_home_that_an_earlier_repair_made_is_not_taken_back_by_a_later_one(
    site: Path, tmp_path: Path
) -> None:
    cuda_dir = tmp_path / "cuda"
    python = make_python().model_copy(update={"site_packages": str(site)})
    profile = make_profile(cuda_dir=cuda_dir)
    # Whatever is composed, this box goes on to lack a header.
    facts = make_facts(
        server_python=python, toolkit=make_toolkit(missing_headers=("curand_kernel.h",))
    )

    def repair(after: BoxFacts) -> str:
        applied, _, _ = repair_box(profile, facts, judge(facts, profile), read=lambda *_: after)
        return applied.status

    assert repair(facts) == "ineffective"
    assert not (cuda_dir / "current").exists(), "what did not help is taken back"
    assert repair(make_facts(server_python=python)) == "applied"
    home = (cuda_dir / "current").resolve()
    assert repair(facts) == "ineffective"
    assert (cuda_dir / "current").resolve() == home


# What happens to a box: a home is applied (a or b), or the newest is taken back.
MOVES = st.lists(st.sampled_from(["a", "b", "undo"]), max_size=5)


@settings(max_examples=12, deadline=None)
@given(moves=MOVES)
def test_apply_then_undo_leaves_the_tree_byte_for_byte_as_it_was(
    moves: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("box")
    site = folder / "site"
    write_wheels(site)
    plans = {"a": plan_of(site, write_driver(folder / "driver"))}
    write_flashinfer(site)
    (site / "nvidia" / "cu13" / "include" / "new.h").touch()
    plans["b"] = plan_of(site, folder / "driver" / "libcuda.so.1")
    home = folder / "home"
    (home / "spool").mkdir(parents=True)
    cuda_dir = home / "cuda"
    before = [snapshot(home)]
    for move in moves:
        if move == "undo":
            assert undo_home(cuda_dir) == (len(before) > 1)
            assert snapshot(home) == before.pop() if len(before) > 1 else before[0]
        else:
            state = snapshot(home)
            if apply_home(cuda_dir, plans[move]):
                before.append(state)
    while len(before) > 1:
        assert undo_home(cuda_dir)
        assert snapshot(home) == before.pop()
    assert not undo_home(cuda_dir)
    assert snapshot(home) == before[0]


def kill_at(step: int, action: Callable[[], object]) -> bool:
    """Run an action in a process of its own, killed before its n-th change of the disk.

    Returns whether it was killed; False: it had come to its end before.
    """
    pid = os.fork()
    if pid == 0:
        left = [step]

        def count(event: str, arguments: tuple[object, ...]) -> None:
            opens = event == "open" and isinstance(arguments[1], str) and arguments[1][0] in "wxa"
            if opens or event in ("os.symlink", "os.rename", "os.mkdir", "os.remove", "os.rmdir"):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(KILLED)

        sys.addaudithook(count)
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == KILLED


def assert_usable_or_absent(cuda_dir: Path, previous: str | None) -> None:
    """The current home is the one of before, or a whole one; never half of one."""
    found = launch_environment(cuda_dir).get("CUDA_HOME")
    if found is None:
        assert previous is None
        assert not (cuda_dir / "current").exists()
    else:
        assert is_whole(Path(found))
    for home in (cuda_dir / "homes").glob("[!.]*"):
        assert is_whole(home)


@pytest.mark.parametrize("with_earlier", [False, True])
def test_killed_half_way_a_home_is_usable_or_absent(
    with_earlier: bool,
    site: Path,
    plan: HomePlan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A killed process loses nothing that it has written: only a power cut would.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    cuda_dir = tmp_path / "home" / "cuda"
    (tmp_path / "home").mkdir()
    if with_earlier:
        apply_home(cuda_dir, plan)
        (site / "nvidia" / "cu13" / "include" / "new.h").touch()
        plan = plan_of(site, tmp_path / "driver" / "libcuda.so.1")
    before = snapshot(tmp_path / "home")
    earlier = launch_environment(cuda_dir).get("CUDA_HOME")
    step = 0
    while kill_at(step, lambda: apply_home(cuda_dir, plan)):
        assert_usable_or_absent(cuda_dir, earlier)
        # The next call finishes what was begun, and it can be taken back to the last byte.
        apply_home(cuda_dir, plan)
        assert launch_environment(cuda_dir)["CUDA_HOME"].endswith(plan.name)
        undo_home(cuda_dir)
        assert snapshot(tmp_path / "home") == before, f"killed before change {step}"
        step += 1 + with_earlier
    assert step > 30
    final = launch_environment(cuda_dir)["CUDA_HOME"]
    step = 0
    while kill_at(step, lambda: undo_home(cuda_dir)):
        found = launch_environment(cuda_dir).get("CUDA_HOME")
        assert found in (final, earlier)
        assert_usable_or_absent(cuda_dir, earlier)
        apply_home(cuda_dir, plan)
        step += 1
    assert snapshot(tmp_path / "home") == before


def test_a_disk_that_fails_leaves_nothing_behind(
    plan: HomePlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tasks.environment.compose.Path.write_text", lambda self, text: fail(self))
    with pytest.raises(OSError, match="No space left"):
        apply_home(tmp_path / "home" / "cuda", plan)
    assert not (tmp_path / "home").exists()
