"""Earlier runs are found below a root, their ids read, their dataset adopted: a folder or S3."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote

import pytest

from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.stages.box import profile_of
from flows.stages.increments import EarlierRun, Past, adopt_dataset, find_past, iter_seen
from flows.stages.remote import fetch_sources
from flows.stages.surroundings import probe_source
from flows.stages.survey import survey
from tasks.errors import CorruptPart, SourceError, UserError
from tasks.settings import Settings
from tasks.storage.config import StoreConfig
from tasks.storage.manifest import write_manifest
from tasks.storage.store import open_store
from tests.support.finished import FinishedRun, finish_run
from tests.support.generation import load_template
from tests.support.prompts import ask, write_jsonl
from tests.support.s3 import S3Server


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finish_run(tmp_path_factory.mktemp("finished"))


def folder_of(finished: FinishedRun) -> Path:
    return Path(unquote(finished.run.store.uri.removeprefix("file://")))


def copy_run(finished: FinishedRun, root: Path, name: str) -> Path:
    return shutil.copytree(folder_of(finished), root / name)


def find(config: StoreConfig, root: str) -> Past:
    return find_past(config, None, root=root, earlier=(), wants_base=True)


def test_the_newest_whole_dataset_below_the_root_is_the_base(
    finished: FinishedRun, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for name in ("mine@aaa", "mine@bbb", "mine@own"):
        copy_run(finished, root, name)
    (root / "notes").mkdir()
    newer = root / "mine@bbb/_manifest/r0000.json"
    shard = next((root / "mine@bbb/dataset").rglob("*.parquet"))
    config = StoreConfig(uri=(root / "mine@own").as_uri())
    past = find(config, root.as_uri())
    assert [Path(run.uri).name for run in past.runs] == ["mine%40aaa", "mine%40bbb"]
    assert past.base is not None
    assert past.base.uri.endswith("mine%40bbb"), "of two of one age the later name"
    shard.write_bytes(b"cut off")
    # Built upon the older one, the newer one's rows would be lost: its prompts count as met.
    with pytest.raises(UserError, match="cannot be built upon") as caught:
        find(config, root.as_uri())
    assert caught.value.where.endswith("mine%40bbb")
    newer.write_bytes(newer.read_bytes()[:-40])
    past = find(config, root.as_uri())
    assert [Path(run.uri).name for run in past.runs] == ["mine%40aaa"]
    assert past.base == past.runs[0]
    assert find(config, (tmp_path / "empty").as_uri()) == Past()


def test_ids_of_an_earlier_run_and_of_the_base_are_known(
    finished: FinishedRun, tmp_path: Path
) -> None:
    run_folder = copy_run(finished, tmp_path / "root", "one")
    config = StoreConfig(uri=(tmp_path / "own").as_uri())
    past = find(config, (tmp_path / "root").as_uri())
    assert past.base is not None
    base = adopt_dataset(config, None, past.base, tmp_path / "bases")
    found = survey(past, config, None, base, load_template(), thinking=True)
    prompts = [prompt for chunk in finished.run.prompts for prompt in chunk]
    ids = {bytes.fromhex(prompt.id) for prompt in prompts}
    assert found.known.answered == ids
    assert found.known.in_base <= ids
    assert len(found.known.in_base) > 1
    after = finished.manifest.composition["after"]["by_domain"]
    assert found.base_rows == {name: tally["n_rows"] for name, tally in after.items()}
    tokens = {name: tally["n_supervised_tokens"] for name, tally in after.items()}
    assert found.base_tokens == tokens
    next((run_folder / "prompts").iterdir()).unlink()
    with pytest.raises(CorruptPart, match="an earlier run is not what it was"):
        list(iter_seen(config, None, past.runs[0]))


def test_a_retry_of_the_earlier_run_does_not_change_the_base_of_a_run_begun_before(
    finished: FinishedRun, tmp_path: Path
) -> None:
    copy_run(finished, tmp_path / "root", "one")
    config = StoreConfig(uri=(tmp_path / "own").as_uri())
    root = (tmp_path / "root").as_uri()
    begun = find(config, root).base
    assert begun is not None
    base = adopt_dataset(config, None, begun, tmp_path / "bases")
    assert "/r0000" in base.path
    shards = tuple(
        shard.model_copy(update={"key": shard.key.replace("r0000", "r0001")})
        for shard in finished.manifest.shards
    )
    later = finished.manifest.model_copy(update={"revision": 1, "shards": shards})
    with closing(open_store(StoreConfig(uri=begun.uri))) as store:
        write_manifest(store, later)
        for before, after in zip(finished.manifest.shards, shards, strict=True):
            store.create(after.key, store.get(before.key))
    assert adopt_dataset(config, None, begun, tmp_path / "bases") == base
    newest = find(config, root).base
    assert newest is not None
    assert newest.revision == 1
    assert "/r0001" in adopt_dataset(config, None, newest, tmp_path / "bases").path


@pytest.mark.real
def test_a_dataset_on_s3_is_fetched_once_and_held_against_its_manifest(
    finished: FinishedRun, seaweedfs: S3Server, tmp_path: Path
) -> None:
    client = seaweedfs.client()
    folder = folder_of(finished)
    for path in (path for path in folder.rglob("*") if path.is_file()):
        key = f"past/one/{path.relative_to(folder)}"
        client.put_object(Bucket=seaweedfs.bucket, Key=key, Body=path.read_bytes())
    config = seaweedfs.config("past/own")
    past = find_past(config, seaweedfs.credentials, root=f"s3://{seaweedfs.bucket}/past",
                     earlier=(), wants_base=True)  # fmt: skip
    assert past.base is not None
    assert past.base.uri == f"s3://{seaweedfs.bucket}/past/one"
    base = adopt_dataset(config, seaweedfs.credentials, past.base, tmp_path / "bases")
    fetched = sorted(Path(base.path).iterdir())
    assert [path.read_bytes() for path in fetched] == [
        (folder / shard.key).read_bytes() for shard in finished.manifest.shards
    ]
    again = adopt_dataset(config, seaweedfs.credentials, past.base, tmp_path / "bases")
    assert again == base
    wrong = EarlierRun(**{**past.base.model_dump(), "plan_sha": "0" * 64})
    with pytest.raises(CorruptPart, match="another one"):
        adopt_dataset(config, seaweedfs.credentials, wrong, tmp_path / "bases")


@pytest.mark.real
def test_a_source_on_s3_becomes_a_local_file_of_the_same_name(
    seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", ask(3))
    client = seaweedfs.client()
    client.put_object(Bucket=seaweedfs.bucket, Key="in/rows.jsonl", Body=rows.read_bytes())
    source = f"sources.mine={{path: s3://{seaweedfs.bucket}/in/rows.jsonl, mapping: {{prompt: q}}}}"
    loaded = load_config("demo", [f"store.uri={tmp_path / 'store'}", source]).config
    config = loaded.model_copy(update={"store": seaweedfs.config("runs/own")})
    local = fetch_sources(config, seaweedfs.credentials, tmp_path / "home")
    path = Path(local.sources["mine"].path or "")
    assert (path.name, path.read_bytes()) == ("rows.jsonl", rows.read_bytes())
    assert local.asked() == config.asked()
    client.put_object(Bucket=seaweedfs.bucket, Key="in/rows.jsonl", Body=b'{"q": "Other?"}\n')
    assert path_of(
        fetch_sources(config, seaweedfs.credentials, tmp_path / "home")
    ).read_bytes() == (b'{"q": "Other?"}\n')
    missing = config.sources["mine"].model_copy(
        update={"path": f"s3://{seaweedfs.bucket}/in/none.jsonl"}
    )
    # The doctor finds it there as well, and fetches nothing; its keys are of the usual AWS chain.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweedfs.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweedfs.secret_key)
    settings = Settings(home=tmp_path / "doctor")
    found = probe_source("mine", config, settings)
    assert (found.dataset, found.error) == ("rows.jsonl", "")
    assert profile_of(config, settings).files == ()
    assert not settings.home.exists()
    lost = config.model_copy(update={"sources": {"mine": missing}})
    assert "no such object" in probe_source("mine", lost, settings).error
    with pytest.raises(SourceError, match="no such object"):
        fetch_sources(config.model_copy(update={"sources": {"mine": missing}}),
                      seaweedfs.credentials, tmp_path / "home")  # fmt: skip


def path_of(config: ExpansionConfig) -> Path:
    return Path(config.sources["mine"].path or "")
