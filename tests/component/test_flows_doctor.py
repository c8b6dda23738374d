"""`draftmill validate` as a user runs it: its table, its JSON, its exit codes, repair and undo."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from flows.command_line.doctor import describe_findings, lay_out, run_doctor
from flows.process.speak import InertConsole
from tasks.settings import read_settings
from tests.support.boxes import judged, make_facts, make_toolkit
from tests.support.cli import Cli
from tests.support.toolkits import snapshot, write_driver, write_wheels

CHECK_KEYS = {"id", "status", "severity", "evidence", "fix"}
FIX_KEYS = {"id", "kind", "argv", "reversible", "undo"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, and no CUDA of the machine."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("DRAFTMILL_HOME", str(folder))
    for name in ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "CPATH"):
        monkeypatch.delenv(name, raising=False)
    read_settings.cache_clear()
    return folder


def write_config(folder: Path, **serving: Any) -> str:
    rows = folder / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": "2 + 3?"}]}) + "\n")
    path = folder / "run.yaml"
    values = {
        "extends": "demo",
        "sources": {"mine": {"path": str(rows), "mapping": {"messages": "messages"}}},
        "store": {"uri": (folder / "store" / "run").as_uri()},
        "environment": {"spool_gib": 0.001, "capability": "12.0"},
        "serving": serving,
    }
    path.write_text(json.dumps(values))
    return str(path)


def ask(capsys: pytest.CaptureFixture[str], *arguments: Any, **options: Any) -> tuple[int, Any]:
    defaults: dict[str, Any] = {"sets": (), "apply": False, "undo": False, "json": True}
    code = run_doctor(*arguments, **(defaults | options))
    return code, json.loads(capsys.readouterr().out)


def test_the_embedded_default_is_sound_and_says_what_does_not_apply(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    code, told = ask(capsys, write_config(tmp_path))
    assert time.monotonic() - began < 10
    assert set(told) == {"schema", "checks"}
    assert told["schema"] == "draftmill/validate/1"
    assert all(set(check) == CHECK_KEYS for check in told["checks"])
    assert all(
        set(check["evidence"]) == {"command", "returncode", "values"} for check in told["checks"]
    )
    found = {check["id"]: check for check in told["checks"]}
    assert code == 0
    assert {c for c in found if found[c]["status"] == "ok"} >= {
        *("spool_disk", "open_files", "files", "store.create_only", "source.mine"),
    }
    skipped = found["nvml"]["evidence"]["values"]["summary"]
    assert (found["nvml"]["status"], skipped) == ("skip", "the servers are simulated")


def test_attached_servers_are_no_business_of_this_box(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, mode="attach", urls=["http://127.0.0.1:1"])
    code, told = ask(capsys, config)
    found = {check["id"]: check for check in told["checks"]}
    assert (code, found["gpus"]["status"]) == (0, "skip")
    assert "others run the servers" in found["gpus"]["evidence"]["values"]["summary"]


def test_warnings_are_2_failures_are_1_and_a_doctor_that_cannot_judge_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", "/dev/shm/draftmill-doctor")  # noqa: S108
    read_settings.cache_clear()
    code, told = ask(capsys, write_config(tmp_path))
    found = {check["id"]: check["status"] for check in told["checks"]}
    assert (code, found["spool_file_system"]) == (2, "warn")
    code, told = ask(capsys, write_config(tmp_path), sets=["environment.spool_gib=100000"])
    broken = next(check for check in told["checks"] if check["status"] == "fail")
    assert (code, broken["id"]) == (1, "spool_disk")
    assert set(broken["fix"]) == FIX_KEYS
    assert "DRAFTMILL_HOME" in broken["evidence"]["values"]["remedy"]
    code, told = ask(capsys, "no-such-file.yaml")
    assert (code, told["schema"], told["error"]) == (3, "draftmill/error/1", "ConfigError")
    monkeypatch.setattr("flows.command_line.doctor.judge", lambda facts, profile: 1 / 0)
    code, told = ask(capsys, write_config(tmp_path))
    assert (code, told["error"]) == (3, "ZeroDivisionError")


def test_without_a_configuration_the_box_alone_is_judged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.stages.box._DRIVER", ())
    code, told = ask(capsys, None)
    found = {check["id"]: check for check in told["checks"]}
    assert (code, found["spool_disk"]["status"]) == (0, "ok")
    assert found["store.create_only"]["status"] == "skip"
    assert "no configuration" in found["nvml"]["evidence"]["values"]["summary"]


def test_the_table_names_each_check_and_below_it_what_mends_it() -> None:
    verdicts = tuple(judged(make_facts(toolkit=make_toolkit(has_nv_target=False))).values())
    console = InertConsole(width=200, record=True, file=io.StringIO())
    console.print(describe_findings(lay_out(verdicts)))
    text = console.export_text()
    assert "nv_target" in text
    assert "1 fail" in text
    assert "draftmill validate run.yaml --apply" in text


# Writes its output file; called with -I, it asks for CCCL there as <cuda/std/type_traits> would.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo 'release 13.0, V13.0.88' && exit
while [ $# -gt 0 ]; do
  [ "$1" = -o ] && out=$2
  [ "$1" = -I ] && [ ! -e "$2/cuda/std/type_traits" ] && echo 'error: cuda/std' >&2 && exit 1
  shift
done
printf 'libcuda.so.1\\0' > "$out"
"""


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Servers' Python with invented wheels, and compilers that look no further than they must."""
    site = tmp_path / "site"
    home = write_wheels(site)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text(COMPILER)
    (home / "bin" / "nvcc").write_text(COMPILER)
    told = json.dumps({"versions": {}, "site_packages": str(site)})
    (tools / "python").write_text(f"#!/bin/sh\necho '{told}'\n")
    for tool in ("g++", "python"):
        (tools / tool).chmod(0o755)
    driver = write_driver(tmp_path / "driver")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver.parent))
    monkeypatch.setenv("CUDA_HOME", str(home))
    return tools / "python"


def test_apply_repairs_and_judges_again_and_undo_takes_it_back(
    tmp_path: Path, servers: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, engine="sglang", python=str(servers), n_servers=1, base_port=0)
    before, wheels = snapshot(home), snapshot(tmp_path / "site")
    _, told = ask(capsys, config)
    found = {check["id"]: check for check in told["checks"]}
    assert found["host_cccl"]["status"] == found["libcudart"]["status"] == "fail"
    assert found["host_cccl"]["fix"]["argv"] == ["draftmill", "validate", config, "--apply"]
    assert snapshot(home) == before, "nothing is changed unless it is asked for"
    _, told = ask(capsys, config, apply=True)
    [repair] = told["repairs"]
    assert (repair["fix"], repair["status"]) == ("compose_cuda_home", "applied")
    assert set(repair["checks"].values()) == {"ok"}
    found = {check["id"]: check for check in told["checks"]}
    assert found["host_cccl"]["status"] == found["cuda_probe"]["status"] == "ok"
    assert snapshot(tmp_path / "site") == wheels
    _, told = ask(capsys, config, apply=True)
    assert told["repairs"][0]["status"] == "nothing"
    code, told = ask(capsys, config, undo=True)
    assert (code, told["repairs"][0]["status"]) == (0, "undone")
    assert snapshot(home) == before
    assert ask(capsys, None, undo=True)[1]["repairs"][0]["status"] == "nothing"


def test_a_repair_that_does_not_help_is_told_and_taken_back(
    tmp_path: Path, servers: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers.with_name("g++").write_text("#!/bin/sh\necho 'error: something else' >&2\nexit 1\n")
    config = write_config(tmp_path, engine="sglang", python=str(servers), n_servers=1, base_port=0)
    before = snapshot(home)
    stubborn = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libcudart.so.13"
    stubborn.unlink()
    code, told = ask(capsys, config, apply=True)
    [repair] = told["repairs"]
    assert (code, repair["status"]) == (1, "ineffective")
    assert "libcudart" in repair["what"]
    assert snapshot(home) == before


def test_a_repair_says_no_where_parts_must_be_pinned_first(
    tmp_path: Path, servers: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = tmp_path / "site" / "nvidia" / "cu13" / "include" / "cuda_runtime_api.h"
    header.write_text("#define CUDART_VERSION 13020\n")
    config = write_config(tmp_path, engine="sglang", python=str(servers), n_servers=1, base_port=0)
    before = snapshot(home)
    code, told = ask(capsys, config, apply=True)
    [repair] = told["repairs"]
    assert (code, repair["status"]) == (1, "refused")
    assert "cuda-toolkit[nvcc,crt,nvvm,cccl,cudart]==13.0.2" in repair["what"]
    assert snapshot(home) == before


def test_a_wrong_command_line_is_not_taken_for_warnings(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home", {})
    assert cli("validate", "--nonsense").code == 3
    shown = cli("validate", "--help")
    assert shown.code == 0
    for option in ("--apply", "--undo", "--json"):
        assert option in shown.out
