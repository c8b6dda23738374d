"""Facts read of this very box, and the task that judges them."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import psutil
import pynvml
import pytest

from tasks.environment.compat import NVML_MEANING
from tasks.environment.facts import name_nvml_error, read_disk, read_facts, read_nvml, read_python
from tasks.environment.record import BoxProfile, Verdict
from tasks.environment.task import validate_environment
from tasks.errors import EnvironmentFailed
from tests.support.fleet import LineLogger


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> LineLogger:
    found = LineLogger()
    monkeypatch.setattr("tasks.environment.task.get_run_logger", lambda: found)
    return found


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


def test_missing_files_are_found(tmp_path: Path) -> None:
    there, missing = tmp_path / "there", tmp_path / "missing"
    there.touch()
    assert read_facts(embedded(tmp_path, files=(there, missing))).missing_files == (str(missing),)


def test_a_python_tells_its_packages_without_importing_them() -> None:
    found = read_python(sys.executable)
    assert found.returncode == 0
    assert "transformers" in found.versions
    assert "sglang" not in found.versions


def test_a_python_that_is_none_is_a_fact_and_no_exception(tmp_path: Path) -> None:
    assert "No such file" in read_python(str(tmp_path / "python")).error
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'bad interpreter' >&2\nexit 7\n")
    broken.chmod(0o755)
    found = read_python(str(broken))
    assert (found.returncode, found.error) == (7, "bad interpreter")


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "LibraryNotFound"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LibRmVersionMismatch"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "DriverNotLoaded"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GpuIsLost"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown"),
        (pynvml.NVML_ERROR_TIMEOUT, "Unknown"),
    ],
)
def test_each_nvml_error_becomes_its_own_fact(
    number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = pynvml.NVMLError(number)
    assert name_nvml_error(error) == name
    assert name in NVML_MEANING

    def refuse() -> None:
        raise error

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert read_nvml().error == name


async def test_the_embedded_default_passes_on_a_box_without_gpu(
    tmp_path: Path, logger: LineLogger
) -> None:
    store = Verdict(id="store", status="ok", severity="error", summary="reachable")
    verdicts = await validate_environment.fn(embedded(tmp_path), (store,))
    statuses = {verdict.id: verdict.status for verdict in verdicts}
    assert "fail" not in statuses.values()
    assert statuses["nvml"] == "skip"
    assert verdicts[-1] == store
    assert len(logger.lines) == len(verdicts)


async def test_a_failing_box_stops_the_run_with_every_check_and_fix(
    tmp_path: Path, logger: LineLogger
) -> None:
    missing = tmp_path / "model"
    profile = embedded(tmp_path, files=(missing,), spool_gib=1e5)
    source = Verdict(id="source_x", status="fail", severity="error", summary="gone")
    with pytest.raises(EnvironmentFailed) as failed:
        await validate_environment.fn(profile, (source,))
    assert failed.value.checks == ("spool_disk", "files", "source_x")
    assert str(missing) in failed.value.what
    assert "DRAFTMILL_HOME" in failed.value.what
