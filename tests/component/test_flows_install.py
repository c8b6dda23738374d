"""`draftmill servers install`: coherent pins, a dry run, and taking up what was cut off."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from flows.command_line.install import (
    check_pins,
    describe_install,
    install_servers,
    plan_steps,
    run_steps,
)
from tasks.environment import compat
from tasks.errors import RunError
from tasks.settings import read_settings


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel with nothing in it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        file: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for file, text in files.items()
    }
    record = "".join(f"{file},sha256={digest},\n" for file, digest in digests.items())
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return path


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
def test_a_dry_run_shows_commands_with_all_five_parts_of_cuda_at_one_version(
    version: compat.SglangVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path))
    read_settings.cache_clear()
    found = install_servers(version, dry_run=True)
    read_settings.cache_clear()
    assert list(tmp_path.iterdir()) == [], "a dry run writes nothing"
    assert found["python"] == str(tmp_path / "servers" / version / "bin" / "python")
    shown = str(describe_install(found)).replace("\\[", "[")
    assert f"cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]=={compat.TOOLKIT[version]}" in shown
    assert f"{version}.txt" in shown
    assert [step["name"] for step in found["steps"]] == ["environment", "cuda", "packages"]


def test_an_installation_that_was_cut_off_is_taken_up_where_it_stood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, pins = tmp_path / "servers", tmp_path / "pins.txt"
    missing = tmp_path / "tiny-1.0-py3-none-any.whl"
    pins.write_text(f"# what servers need\n{missing}\n")
    steps = plan_steps(folder, pins)
    with pytest.raises(RunError) as failed:
        run_steps(folder, pins, steps)
    assert failed.value.where == "packages"
    assert "run the same command again" in failed.value.remedy
    assert "1/2 environment" in capsys.readouterr().err
    write_wheel(tmp_path, "tiny", "1.0")
    made = (folder / "pyvenv.cfg").stat().st_mtime_ns
    run_steps(folder, pins, steps)
    assert "1/2 environment: done already" in capsys.readouterr().err
    assert (folder / "pyvenv.cfg").stat().st_mtime_ns == made
    run_steps(folder, pins, steps)
    assert "2/2 packages: done already" in capsys.readouterr().err
    assert list((folder / "lib").rglob("tiny-1.0.dist-info"))
    # Other pins are another environment.
    pins.write_text(f"{write_wheel(tmp_path, 'tiny', '2.0')}\n")
    run_steps(folder, pins, plan_steps(folder, pins))
    assert list((folder / "lib").rglob("tiny-2.0.dist-info"))
    with pytest.raises(RunError, match="sglang missing"):
        check_pins(folder, {"sglang": "0.5.12"})
