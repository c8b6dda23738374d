"""A push speaks the Hub's own protocol, goes on where it stopped, and writes over nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from flows.command_line.push import push_dataset
from tasks.errors import UserError
from tasks.settings import read_settings
from tests.support.finished import FinishedRun, finish_run
from tests.support.hub_uploads import TOKEN, UploadHub, serve_upload_hub

# The Hub's client itself passes file objects in a way that its HTTP library deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "someone/answers"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[UploadHub]:
    with serve_upload_hub() as served:
        # What HF_ENDPOINT and HF_HUB_DISABLE_XET set when the client is imported.
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("DRAFTMILL_HF_TOKEN", TOKEN)
        monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path))
        read_settings.cache_clear()
        yield served
        read_settings.cache_clear()


def test_a_push_that_was_cut_off_goes_on_and_nothing_is_written_over(
    finished: FinishedRun, hub: UploadHub
) -> None:
    shards = finished.manifest.shards
    assert len(shards) == 2
    hub.most_uploads = 1
    with pytest.raises(UserError, match="the Hub refuses") as told:
        push_dataset(finished.prefix, REPO, private=True)
    assert "goes on" in told.value.remedy
    assert list(hub.files[REPO]) == ["r0000/part-000000.parquet"]

    hub.most_uploads = None
    found = push_dataset(finished.prefix, REPO, private=True)
    assert (found["n_pushed"], found["n_shards"]) == (1, 2)
    for index, shard in enumerate(shards):
        pushed = hub.files[REPO][f"r0000/part-{index:06d}.parquet"]
        assert pushed == finished.run.store.get(shard.key)
    card = hub.files[REPO]["README.md"].decode()
    assert finished.manifest.plan_sha in card
    assert "cc0-1.0" in card
    assert 'data_files: "r0000/*.parquet"' in card, "another revision's rows are not loaded too"
    assert push_dataset(finished.prefix, REPO, private=True)["n_pushed"] == 0

    hub.files[REPO]["r0000/part-000001.parquet"] = b"another revision's"
    with pytest.raises(UserError, match="never written over"):
        push_dataset(finished.prefix, REPO, private=True)
    assert hub.files[REPO]["r0000/part-000001.parquet"] == b"another revision's"


def test_a_token_that_may_not_write_is_told_and_not_shown(
    finished: FinishedRun, hub: UploadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTMILL_HF_TOKEN", "hf_reads_only")
    read_settings.cache_clear()
    with pytest.raises(UserError) as told:
        push_dataset(finished.prefix, REPO, private=True)
    assert "DRAFTMILL_HF_TOKEN" in told.value.remedy
    assert "hf_reads_only" not in str(told.value)


def test_a_hub_out_of_reach_is_told(
    finished: FinishedRun, hub: UploadHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="cannot be reached"):
        push_dataset(finished.prefix, REPO, private=True)
