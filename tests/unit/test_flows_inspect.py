"""Looking at a run: true at every stage, plain about damage, and never a write."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import typer

from flows.command_line.status import read_status
from flows.dataset.export import export_dataset
from flows.dataset.verdict import verify_prefix
from flows.process.speak import answer
from tasks.errors import CorruptPart, UserError
from tasks.storage.layout import data_key, plan_key, request_key
from tasks.storage.request import freeze_json, freeze_request
from tests.support.generation import GenerationRun
from tests.support.merging import assemble_all, plan_merge


@pytest.fixture
def run(tmp_path: Path) -> Iterator[GenerationRun]:
    run = plan_merge(tmp_path)
    yield run
    run.store.close()


def begin(run: GenerationRun) -> None:
    freeze_request(run.store, {"model": "simulated"}, lambda: {"sources": []})


def freeze(run: GenerationRun) -> None:
    begin(run)
    freeze_json(run.store, plan_key(), run.plan.model_dump(mode="json"), "plan")


def list_files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_the_stage_is_told_from_the_store_alone(run: GenerationRun, tmp_path: Path) -> None:
    prefix = str(tmp_path / "store")
    begin(run)
    assert read_status(prefix)["stage"] == "extracting"
    freeze(run)
    assert read_status(prefix)["stage"] == "generating"
    assemble_all(run)
    found = read_status(prefix)
    assert (found["stage"], found["n_chunks_done"], found["n_completed"]) == ("assembling", 2, 12)
    assert "n_parts_damaged" not in found


def test_a_damaged_part_is_counted_and_does_not_end_the_look(
    run: GenerationRun, tmp_path: Path
) -> None:
    freeze(run)
    assemble_all(run)
    path = tmp_path / "store" / data_key(1)
    path.write_bytes(path.read_bytes()[:-5])
    found = read_status(str(tmp_path / "store"))
    assert (found["stage"], found["n_chunks_done"], found["n_parts_damaged"]) == (
        "generating",
        1,
        1,
    )


@pytest.mark.parametrize("key", [request_key(), plan_key()])
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b"\xff\xfe"])
def test_a_damaged_record_is_named(
    run: GenerationRun, tmp_path: Path, key: str, damage: bytes
) -> None:
    freeze(run)
    (tmp_path / "store" / key).write_bytes(damage)
    with pytest.raises(CorruptPart) as told:
        read_status(str(tmp_path / "store"))
    assert key in told.value.where


def test_looking_where_no_run_is_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "rubbish/_run/request.json").mkdir(parents=True)
    (tmp_path / "file").write_text("a file")
    before = list_files(tmp_path)
    for place in ("rubbish", "nothing", "file/below"):
        prefix = (tmp_path / place).as_uri()
        for look in (
            read_status,
            lambda prefix: verify_prefix(prefix, 1.0),
            lambda prefix: export_dataset(prefix, "specforge", tmp_path / "out"),
        ):
            with pytest.raises(UserError):
                look(prefix)
    assert list_files(tmp_path) == before


def test_a_full_local_disk_is_told_in_one_message() -> None:
    def fill() -> dict[str, object]:
        with Path("/dev/full").open("wb", buffering=0) as file:
            try:
                file.write(b"x")
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), "/spool/x") from error
        return {}

    with redirect_stderr(io.StringIO()), pytest.raises(typer.Exit) as ended:
        answer("run", fill, str, json=True)
    assert ended.value.exit_code == 2


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    def fail() -> dict[str, object]:
        raise IsADirectoryError(21, "Is a directory", "/x")

    with pytest.raises(IsADirectoryError):
        answer("run", fail, str, json=False)
