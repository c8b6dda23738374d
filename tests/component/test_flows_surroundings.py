"""What lies beyond the box, asked for real; and the doctor as a flow of its own."""

from __future__ import annotations

import gc
import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.config import ExpansionConfig
from flows.configuration.load import load_config
from flows.process import embedded
from flows.stages.surroundings import probe_source, probe_store, read_cache, read_skew
from tasks.errors import CredentialsRefused, EnvironmentFailed
from tasks.prompts.config import SourceConfig
from tasks.settings import Settings, read_settings
from tasks.storage.config import S3Config, StoreConfig


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A server whose clock is an hour ahead, and that refuses everybody."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return super().date_time_string(time.time() + 3600)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_clock_of_a_store_is_read_from_its_refusal(endpoint: str) -> None:
    there = StoreConfig(uri="s3://bucket/run", s3=S3Config(endpoint_url=endpoint))
    skew = read_skew(there)
    assert skew is not None
    assert skew == pytest.approx(-3600, abs=30)
    gone = StoreConfig(uri="s3://bucket/run", s3=S3Config(endpoint_url="http://127.0.0.1:1"))
    assert read_skew(gone) is None
    assert read_skew(StoreConfig(uri="file:///store/run")) is None


def make_config(tmp_path: Path, path: Path) -> ExpansionConfig:
    sources = {"mine": {"path": str(path), "mapping": {"messages": "messages"}}}
    sets = [f"sources={json.dumps(sources)}", f"store.uri={(tmp_path / 'store' / 'run').as_uri()}"]
    return load_config("demo", [*sets, "environment.spool_gib=0.001"]).config


def test_what_a_store_and_a_source_say_becomes_a_fact(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": "2 + 3?"}]}) + "\n")
    config = make_config(tmp_path, rows)
    settings = Settings(home=tmp_path / "home")
    store = probe_store(config.store, settings)
    assert (store.create_only, store.error) == (True, "")
    protected = StoreConfig(uri=(tmp_path / "completions" / "old").as_uri())
    refused = probe_store(protected, settings)
    assert refused.error
    assert refused.create_only is None
    found = probe_source("mine", config, settings)
    assert (found.dataset, len(found.revision), found.error) == ("rows.jsonl", 64, "")
    rows.unlink()
    assert probe_source("mine", config, settings).error
    # Files that lie here need no room in the cache; a dataset of the Hub does.
    assert read_cache(config)[1] == 0
    remote = SourceConfig.model_validate(
        {"dataset": "openai/gsm8k", "config": "main", "mapping": {"prompt": "question"}}
    )
    assert read_cache(config.model_copy(update={"sources": {"hub": remote}}))[1] == 10.0


def test_a_block_of_credentials_is_looked_for_within_a_flow_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tasks.storage.task as blocks

    async def refuse(config: StoreConfig) -> None:
        raise CredentialsRefused("there is no such block.", remedy="Save it.")

    monkeypatch.setattr(blocks, "load_credentials", refuse)
    # A worker has imported Prefect before any line of ours runs.
    monkeypatch.setattr(embedded, "_is_embedded", None)
    s3 = S3Config(credentials_block="aws-credentials/none")
    found = probe_store(StoreConfig(uri="s3://bucket/run", s3=s3), Settings(home=tmp_path))
    assert (found.error, found.remedy) == ("there is no such block.", "Save it.")


# Prefect's client leaves the socket of its events to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("prefect_api")
async def test_the_doctor_is_a_flow_that_fails_with_what_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.validate import validate

    monkeypatch.setenv("DRAFTMILL_HOME", str(tmp_path / "home"))
    read_settings.cache_clear()
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": "2 + 3?"}]}) + "\n")
    config = make_config(tmp_path, rows)
    assert await validate(config) > 40
    rows.unlink()
    with pytest.raises(EnvironmentFailed) as failed:
        await validate(config)
    assert failed.value.checks == ("files", "source.mine")
    read_settings.cache_clear()
    gc.collect()  # so that those sockets are closed while their warning is expected
