"""The command line says one thing at a time, and nothing that a terminal would act on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from flows.cli import main
from flows.command_line.push import describe_push
from flows.command_line.status import read_status
from flows.command_line.summary import describe_summary, show_place
from flows.dataset.export import describe_export, export_dataset
from flows.dataset.verdict import verify_prefix
from flows.process.speak import InertConsole, answer, table
from flows.stages.host_fleet import describe_fleet, describe_logs
from tasks.errors import ConfigError, ConfigIssue, UserError
from tasks.settings import read_settings

EVIL = "a\x1b[31mred\x07\x9b2J\u202eb"


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["draftmill", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_what_strangers_wrote_cannot_act_on_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = InertConsole(force_terminal=True, width=40)
    console.print(table(("name", EVIL), [(EVIL, "2")]))
    console.print(f"[bold]{EVIL}[/]")
    out = capsys.readouterr().out
    assert "a[31mred2Jb" in out
    assert "\x1b[31m" not in out
    assert not set(out) & set("\x07\x9b\u202e")
    assert "\x1b[1m" in out, "the console's own codes stay"


def test_into_a_pipe_a_long_line_is_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/a/long/path" * 30
    answer("x", dict, lambda _: table(("place",), [(path,)]), json=False)
    assert path in capsys.readouterr().out


def test_json_is_one_ascii_object_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    answer("x", lambda: {"name": EVIL, "path": "\udcff"}, str, json=True)
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"schema": "draftmill/x/1", "name": EVIL, "path": "\udcff"}


def test_an_error_is_one_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> dict[str, Any]:
        raise ConfigError("faults", issues=(ConfigIssue("a.yaml:1:1", "x", "unknown key"),))

    with pytest.raises(typer.Exit):
        answer("x", refuse, str, json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["error"] == "ConfigError"
    assert told["issues"][0]["place"] == "a.yaml:1:1"


def test_a_fault_of_ours_is_an_object_too_and_keeps_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ZeroDivisionError):
        answer("x", lambda: {"n": 1 // 0}, str, json=True)
    assert json.loads(capsys.readouterr().out)["error"] == "ZeroDivisionError"


def test_a_wrong_command_line_is_told_to_programs_too(command: Callable[..., Ran]) -> None:
    ran = command("export", "x", "--json")
    assert ran.code == 2
    assert "--to" in ran.err
    assert json.loads(ran.out)["error"] == "UsageError"
    assert command("nonsense").code == 2


def test_commands_end_with_their_documented_codes(command: Callable[..., Ran]) -> None:
    assert command("--version").code == 0
    refused = command("config", "show", "nowhere", "--json")
    assert (refused.code, json.loads(refused.out)["error"]) == (2, "ConfigError")


@pytest.mark.parametrize(
    "prefix",
    ["", "s3://", "s3:///x", "file://", "file://x/y", "http://a/b", "file:///a/../b",
     "file:///\udcff\n", "a\0b", "~nobody-here/x", "x" * 5000, "file:///" + "x" * 5000],
)  # fmt: skip
def test_a_prefix_that_is_none_is_the_users_to_correct(prefix: str, tmp_path: Path) -> None:
    for look in (
        read_status,
        lambda prefix: verify_prefix(prefix, 1.0),
        lambda prefix: export_dataset(prefix, "specforge", tmp_path / "out"),
    ):
        with pytest.raises(UserError):
            look(prefix)


def test_looking_is_allowed_where_writing_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "completions" / "run"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="there is no run"):
        read_status(folder.as_uri())


def test_a_place_on_disk_is_shown_as_a_shell_takes_it() -> None:
    assert show_place("file:///a%20b/c") == "/a b/c"
    assert show_place("s3://bucket/a%20b") == "s3://bucket/a%20b"


def test_a_home_that_is_a_file_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "file" / "home"))
    read_settings.cache_clear()
    try:
        with pytest.raises(UserError, match=r"DRAFTMILL_HOME.*is a file"):
            read_settings()
        monkeypatch.setenv("DRAFTMILL_HOME", "~/mill")
        assert read_settings().home == Path.home() / "mill"
    finally:
        read_settings.cache_clear()


def test_what_stands_in_brackets_is_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[one][/two]"
    uri = f"file:///{name}"
    review = {"state": "AwaitingReview", "canary": uri, "command": f"draftmill run {name}"}
    server = {"status": "up", "model": name, "n_leases": 1, "by_hand": False, "supervisor_pid": 1}
    console = InertConsole(width=200, highlight=False)
    for described in (
        describe_summary(review),
        describe_summary({"state": "NothingNew", "earlier": [uri]}),
        describe_export({"form": "parquet", "files": [f"/{name}/a"]}),
        describe_push({"repo": name, "folder": name, "n_shards": 1, "n_pushed": 1}),
        describe_logs({"logs": [{"path": name, "text": f"ready {name}"}]}),
        describe_fleet({**server, "servers": []}),
        table((name,), []),
    ):
        console.print(described)
        assert name in capsys.readouterr().out
