"""Facts read of this very box, and the task that judges them."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import sys
from pathlib import Path

import psutil
import pytest
from prefect import flow
from prefect.artifacts import Artifact

from tasks.environment.facts import read_facts
from tasks.environment.host_facts import find_missing, read_disk
from tasks.environment.model_facts import read_model
from tasks.environment.python_facts import read_python
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.task import validate_environment
from tasks.environment.toolkit_facts import find_home, read_jit_cache, read_kernel_archs
from tasks.errors import EnvironmentFailed
from tests.support.toolkits import write_wheels


def embedded(folder: Path, **changes: object) -> BoxProfile:
    fields = {
        "no_gpu_reason": "the servers are simulated",
        "spool_dir": folder / "spool",
        "spool_gib": 0.001,
        "n_open_files": 64,
    }
    return BoxProfile.model_validate(fields | changes)


def test_a_held_port_is_told_with_its_holder(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        facts = read_facts(embedded(tmp_path, ports=(port,)))
    name = psutil.Process().name()
    assert facts.taken_ports == {port: f"pid {os.getpid()} ({name})"}


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "not" / "yet")
    assert disk.writable
    assert 0 < disk.free_gib < 1e6
    assert str(tmp_path).startswith(disk.mountpoint)
    assert read_disk(Path("/dev/shm/draftmill")).fs_type == "tmpfs"  # noqa: S108


def test_missing_files_are_told_from_those_that_cannot_be_looked_at(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    assert read_facts(embedded(tmp_path, files=(there, missing))).missing_files == (str(missing),)
    below_a_file, too_long = there / "x", tmp_path / ("x" * 300)
    assert find_missing([below_a_file, too_long]) == ((str(below_a_file),), (str(too_long),))


def test_a_python_tells_its_packages_without_importing_them() -> None:
    found = read_python(sys.executable)
    assert found.returncode == 0
    assert "transformers" in found.versions
    assert "sglang" not in found.versions
    assert found.site_packages.endswith("site-packages")


def test_a_python_that_is_none_is_a_fact_and_no_exception(tmp_path: Path) -> None:
    assert "No such file" in read_python(str(tmp_path / "python")).error
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'bad interpreter' >&2\nexit 7\n")
    broken.chmod(0o755)
    found = read_python(str(broken))
    assert (found.returncode, found.error) == (7, "bad interpreter")


def write_weights(path: Path, n_bytes: int) -> None:
    """Write a safetensors file of one tensor."""
    tensor = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}
    header = json.dumps({"weight": tensor}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {"mtp_num_hidden_layers": 1},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    for shard in shards.values():
        write_weights(folder / shard, 1000)
    return folder


def test_a_model_is_complete_when_every_file_is_as_long_as_it_says(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    whole = read_model(str(folder), None)
    assert (whole.missing, whole.has_mtp, whole.is_local) == ((), True, True)
    assert whole.architectures == ("Qwen3_5ForConditionalGeneration",)
    assert whole.weights_gib == pytest.approx(2 * 1080 / 2**30, rel=0.1)
    last = folder / "model-00002-of-00002.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    assert read_model(str(folder), None).missing == (last.name,)
    last.unlink()
    (folder / "tokenizer.json").unlink()
    assert read_model(str(folder), None).missing == ("tokenizer.json", last.name)


def test_a_model_of_the_hub_is_looked_up_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    absent = read_model("org/model", None)
    assert "config.json" in absent.missing
    assert absent.disk is not None
    repository = tmp_path / "models--org--model"
    write_model(repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert read_model("org/model", None).missing == ()
    assert read_model("org/model", "abc").missing == ()
    assert "config.json" in read_model("org/model", "other").missing


def test_the_toolkit_is_looked_for_where_the_servers_compilers_look(tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheels = write_wheels(site)
    nowhere = {"PATH": str(tmp_path)}
    assert find_home(nowhere | {"CUDA_HOME": str(wheels)}, None, None) == (wheels, "CUDA_HOME")
    # A list is no folder: whoever comes next in the order is taken.
    listed = {"CUDA_HOME": f":{wheels}", "CUDA_PATH": str(wheels)}
    assert find_home(nowhere | listed, None, None) == (wheels, "CUDA_PATH")
    on_path = {"PATH": str(wheels / "bin")}
    assert find_home(on_path, None, None) == (wheels, "PATH")
    assert find_home({"CUDA_HOME": str(wheels)}, None, site) == (wheels, "composed")


def test_cached_kernels_and_their_toolchain_are_found(tmp_path: Path) -> None:
    base = tmp_path / "jit" / "a1b2"
    ops = base / ".cache" / "flashinfer" / "0.6.11" / "120f" / "cached_ops" / "page"
    ops.mkdir(parents=True)
    (ops / "page.so").touch()
    os.utime(ops / "page.so", (1_000.0, 1_000.0))
    found = read_jit_cache({"FLASHINFER_WORKSPACE_BASE": str(base)})
    assert (found.n_objects, found.oldest, found.keyed_by) == (1, 1_000.0, "a1b2")


def test_the_architectures_of_the_kernel_package_are_read(tmp_path: Path) -> None:
    site, home = tmp_path / "site", tmp_path / "cuda"
    (site / "sgl_kernel").mkdir(parents=True)
    assert read_kernel_archs(home, site) is None
    (site / "sgl_kernel" / "common_ops.abi3.so").touch()
    (home / "bin").mkdir(parents=True)
    tool = home / "bin" / "cuobjdump"
    tool.write_text("#!/bin/sh\necho 'ELF file 1: ops.1.sm_90a.cubin'\necho 'ops.2.sm_120.cubin'\n")
    tool.chmod(0o755)
    assert read_kernel_archs(home, site) == ("sm_120", "sm_90a")


# Prefect's client leaves the socket of its events to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("prefect_api")
async def test_the_task_stops_a_failing_box_and_shows_every_check_in_prefect(
    tmp_path: Path,
) -> None:
    store = Verdict(id="store", status="ok", severity="error", summary="reachable")

    @flow(name="judge-boxes")
    async def judge_boxes() -> tuple[tuple[Verdict, ...], EnvironmentFailed]:
        verdicts = await validate_environment(embedded(tmp_path), (store,))
        failing = embedded(tmp_path, files=(tmp_path / "model",), spool_gib=1e5)
        source = Verdict(id="source_x", status="fail", severity="error", summary="gone")
        with pytest.raises(EnvironmentFailed) as failed:
            await validate_environment(failing, (source,))
        return verdicts, failed.value

    verdicts, failed = await judge_boxes()
    statuses = {verdict.id: verdict.status for verdict in verdicts}
    assert "fail" not in statuses.values()
    assert statuses["nvml"] == "skip"
    assert verdicts[-1] == store
    assert failed.checks == ("spool_disk", "files", "source_x")
    assert str(tmp_path / "model") in failed.what
    assert "DRAFTMILL_HOME" in failed.what
    shown = await Artifact.aget("environment")
    assert shown is not None
    rows = {row["check"]: row for row in json.loads(str(shown.data))}
    assert set(rows) == set(statuses) - {"store"} | {"source_x"}
    assert rows["files"]["status"] == "fail"
    assert "Correct the paths" in rows["files"]["fix"]
    gc.collect()  # so that those sockets are closed while their warning is expected
