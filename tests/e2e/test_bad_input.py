"""Bad input ends in one clear message that names thing and remedy, and writes nothing over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.errors import DraftmillError
from tests.support.cli import Cli
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere
from tests.support.s3 import S3Server
from tests.support.simulator import find_free_port

pytestmark = PREFECT_LEAVES_SOCKETS

CONFIG = """
extends: demo
store: {uri: store}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
serving: {n_servers: 1, ready_timeout_seconds: 5}
"""
ATTACHED = """
store: {uri: store}
model: {path: "builtin:simulator", served_name: simulated}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: question}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "rows.jsonl").write_text('{"question": "Which river is the longest?"}\n' * 3)
    (tmp_path / "run.yaml").write_text(CONFIG)
    return tmp_path / "run.yaml"


def refuse(run: Callable[[], object], code: int, *said: str) -> None:
    with pytest.raises(DraftmillError) as caught:
        run()
    told = str(caught.value)
    assert caught.value.exit_code == code, told
    for text in said:
        assert text in told, told


def remove_rows(folder: Path) -> None:
    (folder / "rows.jsonl").unlink()


def break_parquet(folder: Path) -> None:
    (folder / "rows.parquet").write_text("no parquet")


def break_lines(folder: Path) -> None:
    (folder / "rows.jsonl").write_text("question: none\n{\n")


def break_shape(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"questoin": "Which river?"}\n')


def leave(folder: Path) -> None:
    del folder


@pytest.mark.parametrize(
    ("spoil", "fault", "code", "said"),
    [
        (remove_rows, "", 2, ["rows.jsonl", "Remedy"]),
        (break_parquet, "sources.mine.path=PLACE/rows.parquet", 2, ["rows.parquet", "Remedy"]),
        (break_shape, "", 2, ["mapping.prompt", "question", "questoin", "Remedy"]),
        (leave, "sources.mine.use=nowhere", 2, ["nowhere", "Remedy"]),
        (leave, "base.path=PLACE/gone.parquet", 1, ["gone.parquet", "Remedy"]),
        (leave, "model.path=/nowhere/model", 2, ["/nowhere/model", "Remedy"]),
        (leave, "store.protected=[store]", 2, ["store", "protected", "Remedy"]),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_frozen(
    run_here: RunHere,
    config: Path,
    *,
    spoil: Callable[[Path], None],
    fault: str,
    code: int,
    said: list[str],
) -> None:
    spoil(config.parent)
    sets = [fault.replace("PLACE", str(config.parent))] if fault else []
    refuse(lambda: run_here(config, sets), code, *said)
    written = {path.name for path in (config.parent / "store").rglob("*") if path.is_file()}
    assert written <= {"create-only-probe", "create-only-race"}


def test_lines_that_are_no_rows_are_told_with_their_number(run_here: RunHere, config: Path) -> None:
    break_lines(config.parent)
    refuse(lambda: run_here(config), 2, "mine", "none of the 2 rows", "Remedy")


def test_a_file_that_changed_since_the_run_began_is_named(run_here: RunHere, config: Path) -> None:
    run_here(config, ["serving.simulator.mean_tokens=20", "serving.ready_timeout_seconds=120"])
    with (config.parent / "rows.jsonl").open("a") as rows:
        rows.write('{"question": "And the shortest?"}\n')
    refuse(lambda: run_here(config), 2, "rows.jsonl", "has changed", "Remedy")


def test_a_bucket_or_key_that_is_not_there_is_named(
    run_here: RunHere, config: Path, seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.access_key)
    place = "region: us-east-1, addressing_style: path"
    there = f"store.s3={{endpoint_url: '{seaweedfs.endpoint_url}', {place}}}"
    nobody = f"store.s3={{endpoint_url: 'http://127.0.0.1:{find_free_port()}', {place}}}"
    for uri, s3, secret, said in (
        ("s3://no-such-bucket/run", there, seaweedfs.secret_key, "no-such-bucket"),
        (f"s3://{seaweedfs.bucket}/run", there, "wrong", "credentials"),
        (f"s3://{seaweedfs.bucket}/run", nobody, seaweedfs.secret_key, "127.0.0.1"),
        (f"s3://{seaweedfs.bucket}/completions/new", there, seaweedfs.secret_key, "completions"),
    ):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        sets = [f"store.uri={uri}", s3]
        refuse(lambda sets=sets: run_here(config, sets), 2, said, "Remedy")  # type: ignore[misc]


def test_endpoints_that_never_answer_are_each_named(run_here: RunHere, config: Path) -> None:
    config.write_text(ATTACHED)
    url = f"http://127.0.0.1:{find_free_port()}"
    serving = f"serving={{mode: attach, urls: ['{url}'], ready_timeout_seconds: 3}}"
    refuse(lambda: run_here(config, [serving]), 1, url, "Remedy")


def test_a_server_that_never_gets_healthy_shows_the_end_of_its_log(
    run_here: RunHere, config: Path
) -> None:
    sets = ["serving.extra_flags=[--no-such-flag]", "serving.max_restarts=0"]
    refuse(lambda: run_here(config, sets), 1, "unrecognized arguments: --no-such-flag", "Remedy")


def test_the_command_tells_an_error_in_one_message_and_no_traceback(cli: Cli, config: Path) -> None:
    told = cli("run", str(config), "--set", "sources.mine.shape=odd")
    assert told.code == 2
    assert "--set sources.mine.shape: sources.mine.shape: unknown key" in told.err
    told = cli("run", str(config), "--set", "store.protected=[store]")
    assert told.code == 2
    assert sum(line.startswith("error ") for line in told.err.splitlines()) == 1
    assert "Traceback" not in told.err + told.out
    refused = cli("run", str(config), "--set", "store.protected=[store]", "--json")
    assert refused.code == 2
    assert refused.json["error"] == "ProtectedPrefix"
    assert refused.json["remedy"]
