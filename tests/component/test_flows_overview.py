"""All runs over one source below a root: what became of each, and the command that takes it up."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from flows.cli import app
from flows.command_line.overview import DEPLOYMENTS
from flows.configuration.complete import complete_sources, pin
from flows.configuration.load import load_config
from flows.stages.narrow import hash_asked, narrow
from tasks.storage.config import StoreConfig
from tasks.storage.layout import begun_key, derive_prefix, plan_key, seen_key
from tasks.storage.presence import Presence, announce, take_leave
from tasks.storage.request import freeze_json, freeze_request
from tasks.storage.store import ArtifactStore, open_store
from tests.support.finished import FinishedRun, finish_run
from tests.support.prompts import ask, write_jsonl
from tests.support.s3 import S3Server

CONFIG = """
extends: demo
store: {uri: root}
sources:
  mine: {path: rows.jsonl, mapping: {prompt: q}}
  yours: {dataset: someone/invented, mapping: {prompt: q}}
"""
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAST = {"uri": "file:///earlier", "revision": 0, "plan_sha": "0" * 64}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("finished"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(CONFIG)
    return path


@contextmanager
def begin(config: Path, revision: str, past: tuple[Any, ...] = ()) -> Iterator[ArtifactStore]:
    """Begin the run that an event for a revision of `yours` begins."""
    asked = complete_sources(pin(load_config(str(config)).config, "yours", revision))
    sha = hash_asked(asked)
    uri = derive_prefix(asked.store.uri, "yours", revision, sha)
    source = {"key": "yours", "dataset": "someone/invented", "revision": revision}
    resolved = {"sources": [source], "past": {"runs": list(past), "base": None}}
    store = open_store(StoreConfig(uri=uri))
    freeze_request(store, asked.asked(), lambda: resolved)
    yield store
    store.close()


def survey(*arguments: object) -> dict[str, Any]:
    told = CliRunner().invoke(app, ["status", "--root", *map(str, arguments), "--json"])
    assert told.exit_code == 0, told.output
    return dict(json.loads(told.stdout))


def revise(number: int) -> str:
    return f"{number:02d}{COMMIT[2:]}"


def test_each_run_is_told_by_its_store_alone(
    config: Path, finished: FinishedRun, tmp_path: Path
) -> None:
    plan = finished.run.plan.model_dump(mode="json")
    with begin(config, revise(0)) as store:
        folder = Path(unquote(finished.prefix.removeprefix("file://")))
        root = Path(unquote(store.uri.removeprefix("file://")))
        shutil.copytree(folder, root, dirs_exist_ok=True)
        freeze_json(store, plan_key(), plan, "plan")
    with begin(config, revise(1), past=(PAST,)) as store:
        store.create(seen_key("yours"), b"ids")
    with begin(config, revise(2)) as store:
        freeze_json(store, plan_key(), plan, "plan")
        take_leave(store, announce(store), "StoppedByGate", "past the threshold of: empty_answer")
    with begin(config, revise(3)) as store:
        take_leave(store, announce(store), "NoEndpoint", "no server was admitted")
    with begin(config, revise(4)) as store:
        announce(store)
    with begin(config, revise(5)) as store:
        gone = Presence(
            host=os.uname().nodename, pid=1, process_started_at=1.0, began_at="2026-01-01T00:00:00"
        )
        store.create(begun_key("20260101T000000Z-x-1-aa"), gone.model_dump_json().encode())
    with begin(config, revise(6)) as store:
        take_leave(store, announce(store), "AwaitingReview", "look at the canary")
    (tmp_path / "root/notes").mkdir()
    (tmp_path / f"root/yours@{COMMIT[:12]}-12345678-prefect-results").mkdir()
    found = survey(tmp_path / "root")
    assert (found["schema"], found["n_runs"]) == ("draftmill/status-root/1", 7)
    runs = {run["revision"]: run for run in found["runs"]}
    assert {run["source"] for run in found["runs"]} == {"yours"}
    assert [runs[revise(n)]["stage"] for n in range(7)] == [
        "done",
        "nothing new",
        "stopped by a gate",
        "failed",
        "at work",
        "open",
        "awaiting review",
    ]
    assert "empty_answer" in runs[revise(2)]["last_words"]
    assert "0 of 1 chunks are published" in runs[revise(2)]["detail"]
    assert runs[revise(3)]["last_words"].endswith("NoEndpoint: no server was admitted")
    assert "was killed" in runs[revise(5)]["detail"]
    assert [bool(runs[revise(n)]["commands"]) for n in range(7)] == [
        *(False, False, True, True, False, True, True)
    ]


def test_the_commands_are_those_that_find_the_very_prefix_again(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    write_jsonl(tmp_path / "rows.jsonl", ask(3))
    begun = narrow(load_config(str(config)).config, "mine", None)
    source = {"key": "mine", "dataset": "rows.jsonl", "revision": begun.sources["mine"].revision}
    resolved = {"sources": [source], "past": {"runs": [], "base": None}}
    store = open_store(begun.store)
    freeze_request(store, complete_sources(begun).asked(), lambda: resolved)
    store.close()
    (run,) = survey(config)["runs"]
    here, there = map(shlex.split, run["commands"])
    assert here[:3] == ["draftmill", "run", str(config)]
    options = dict(zip(here[3::2], here[4::2], strict=True))
    again = narrow(load_config(here[2]).config, options["--source"], options["--revision"])
    assert again.store.uri == begun.store.uri == run["uri"]
    assert there[:5] == ["prefect", "deployment", "run", "expand/box", "--params"]
    assert json.loads(there[5]) == {"source": "mine", "revision": options["--revision"]}
    (unnamed,) = survey(begun.store.uri.rpartition("/")[0])["runs"]
    assert shlex.split(unnamed["commands"][0])[2] == "CONFIG"


def test_a_run_that_awaited_review_is_taken_up_past_its_canary(
    config: Path, tmp_path: Path
) -> None:
    config.write_text(CONFIG + "gates: {pause_after_canary: true, min_rows: 7}\n")
    with begin(config, COMMIT) as store:
        take_leave(store, announce(store), "AwaitingReview", "look at the canary")
    (run,) = survey(config)["runs"]
    here, there = map(shlex.split, run["commands"])
    assert here[-2:] == ["--set", "gates.pause_after_canary=false"]
    assert here[3:-2] == ["--source", "yours", "--revision", COMMIT]
    parameters = json.loads(there[-1])
    wanted = load_config(str(config), here[-1:]).config.model_dump(mode="json")
    assert parameters == {"source": "yours", "revision": COMMIT, "config": wanted}
    # A deployment takes no part of a configuration, and without one there is no whole.
    (run,) = survey(tmp_path / "root")["runs"]
    assert [shlex.split(command)[-1] for command in run["commands"]] == here[-1:]


def test_a_name_in_brackets_is_told_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "[old" / "]roots"
    root.mkdir(parents=True)
    (root / f"yours@{COMMIT[:12]}-12345678").mkdir()
    told = CliRunner().invoke(app, ["status", "--root", str(root)])
    assert told.exit_code == 0, told.output
    assert f"1 run below {root}: 1 no run" in told.stdout


def test_a_configuration_that_asks_for_something_else_now_is_told_and_no_command_given(
    config: Path, tmp_path: Path
) -> None:
    with begin(config, COMMIT):
        pass
    config.write_text(CONFIG + "sampling: {temperature: 0.123}\n")
    (run,) = survey(config)["runs"]
    assert run["commands"] == []
    assert "sampling.temperature" in run["detail"]
    assert "0.123 asked now" in run["detail"]
    (run,) = survey(tmp_path / "root")["runs"]
    assert run["commands"], "without a configuration nothing is known to differ"


def test_runs_are_told_one_by_one_and_a_damaged_one_hides_no_other(
    config: Path, tmp_path: Path
) -> None:
    for number in range(3):
        with begin(config, revise(number)) as store:
            path = Path(unquote(store.uri.removeprefix("file://"))) / "_run/request.json"
        if number == 1:
            path.write_bytes(b"{")
    told = CliRunner().invoke(app, ["status", "--root", str(tmp_path / "root")])
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert [line.split("  ")[2].split(":")[0] for line in lines if "  " in line.strip()] == [
        "open", "damaged", "open"]  # fmt: skip
    assert lines[-1].endswith("2 open, 1 damaged")


def test_an_empty_or_wrong_root_is_the_users_to_correct(config: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong/notes").mkdir(parents=True)
    single = tmp_path / "single"
    store = open_store(StoreConfig(uri=single.as_uri()))
    freeze_request(store, {}, lambda: {"sources": []})
    store.close()
    for root, said in [
        (tmp_path / "none", "no such file"),
        ((tmp_path / "none").as_uri(), "there is nothing below this root"),
        (config, "there is nothing below this root"),
        (tmp_path / "wrong", "none of the 1 folders below this root is a run's: notes"),
        (single, f"draftmill status {single}"),
    ]:
        told = CliRunner().invoke(app, ["status", "--root", str(root), "--json"])
        assert told.exit_code == 2, told.output
        assert said in told.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["somewhere", "--root", "x"], ["--root", "x", "--watch"]]
)
def test_one_of_prefix_and_root_is_asked_for(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["status", *arguments]).exit_code == 2


def test_the_deployments_named_are_those_that_are_deployed() -> None:
    deployed = YAML(typ="safe").load(Path("deployments/prefect.yaml").read_text())["deployments"]
    known = {
        f"{entry['entrypoint'].rpartition(':')[2].replace('_', '-')}/{entry['name']}"
        for entry in deployed
    }
    assert set(DEPLOYMENTS.values()) <= known


def test_below_a_root_on_s3_only_folders_are_listed(
    config: Path, seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweedfs.secret_key)
    root = seaweedfs.config("overview")
    document = YAML(typ="safe").load(CONFIG)
    document["store"] = root.model_dump(mode="json", exclude_defaults=True)
    path = tmp_path / "s3.yaml"
    with path.open("w") as out:
        YAML(typ="safe").dump(document, out)
    del config
    loaded = load_config(str(path)).config
    asked = complete_sources(pin(loaded, "yours", COMMIT))
    uri = derive_prefix(root.uri, "yours", COMMIT, hash_asked(asked))
    source = {"key": "yours", "dataset": "someone/invented", "revision": COMMIT}
    store = open_store(root.model_copy(update={"uri": uri}), seaweedfs.credentials)
    freeze_request(store, asked.asked(), lambda: {"sources": [source], "past": {"runs": []}})
    for number in range(20):
        store.create(f"extracted/yours/part-{number:06d}.parquet", b"rows")
    store.close()
    (run,) = survey(path)["runs"]
    assert (run["uri"], run["stage"]) == (uri, "open")
    assert shlex.split(run["commands"][0])[2] == str(path)
