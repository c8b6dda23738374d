"""Sources, rows and extraction for the tests of prompts; all rows are invented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.chat.config import ModelConfig
from tasks.chat.template import ChatTemplate
from tasks.prompts.chunk import make_plan
from tasks.prompts.config import ExtractionConfig, RowMapping, SourceConfig
from tasks.prompts.extract import extract_prompts
from tasks.prompts.normalize import normalize_row
from tasks.prompts.prompt_file import iter_records
from tasks.prompts.record import ExtractReceipt, NormalizedRow, Plan, Rejection, SourceRef
from tasks.prompts.sources import resolve_source
from tasks.storage.config import StoreConfig
from tasks.storage.store import ArtifactStore, open_store
from tests.support.simulator import MODEL_DIR

_TOPICS = ("lighthouses", "sourdough", "tram lines", "moss", "chess clocks")
REF = SourceRef("invented", "invented", None, "train", "0" * 64, 0)
MODEL = ModelConfig(path=str(MODEL_DIR), context_length=4096)


def normalize(row: object, **mapping: Any) -> NormalizedRow | Rejection:
    """Normalise one row under a mapping."""
    config = SourceConfig(path="invented.jsonl", mapping=RowMapping.model_validate(mapping))
    return normalize_row(row, REF, config)


def refusal_of(row: object, **mapping: Any) -> str:
    """Give the kind of the Rejection that a row ends in."""
    result = normalize(row, **mapping)
    assert isinstance(result, Rejection), result
    return result.kind


def accepted(row: object, **mapping: Any) -> NormalizedRow:
    """Give the conversation that a row ends in."""
    result = normalize(row, **mapping)
    assert isinstance(result, NormalizedRow), result
    return result


def write_jsonl(path: Path, rows: Sequence[object]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def extract_file(
    store: ArtifactStore,
    template: ChatTemplate,
    key: str,
    config: SourceConfig,
    extraction: ExtractionConfig | None = None,
    **more: Any,
) -> ExtractReceipt:
    """Resolve and extract a source of a local file; work in progress lies beside the store."""
    return extract_prompts(
        store,
        resolve_source(key, config, None),
        config,
        template=template,
        model=MODEL,
        extraction=extraction or ExtractionConfig(),
        hf_token=None,
        spool_dir=spool_of(store),
        **more,
    )


def spool_of(store: ArtifactStore) -> Path:
    """Give the folder for work in progress: beside the run of a file:// store."""
    return Path(store.uri.removeprefix("file://")).parent / "spool"


def read_records(store: ArtifactStore, keys: Sequence[str]) -> list[dict[str, Any]]:
    """Read the records of several files."""
    return [record for key in keys for record in iter_records(store.get(key))]


def ask(n: int, start: int = 0) -> list[dict[str, Any]]:
    """Invent rows of one question each."""
    return [{"q": f"Tell me fact {i} about {_TOPICS[i % 5]}."} for i in range(start, start + n)]


def source_of(tmp_path: Path, rows: list[Any], name: str = "rows", **config: Any) -> SourceConfig:
    """Write rows to a file and configure it as a source."""
    path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
    config.setdefault("mapping", RowMapping(prompt="q"))
    return SourceConfig(path=str(path), **config)


def plan_of(
    store: ArtifactStore,
    template: ChatTemplate,
    receipts: list[ExtractReceipt],
    extraction: ExtractionConfig | None = None,
    temperature: float = 1.0,
    **more: Any,
) -> Plan:
    """Plan what was extracted."""
    return make_plan(
        store,
        request_sha="0" * 64,
        receipts=receipts,
        model=MODEL,
        template=template,
        extraction=extraction or ExtractionConfig(),
        sampling={"temperature": temperature},
        n_samples=1,
        max_tokens=512,
        spool_dir=spool_of(store),
        **more,
    )


def other_store(tmp_path: Path, name: str) -> ArtifactStore:
    """Open another empty store."""
    return open_store(StoreConfig(uri=f"file://{tmp_path}/{name}/run"))


def list_objects(store: ArtifactStore) -> dict[str, bytes]:
    """Read every object of a store."""
    return {stat.key: store.get(stat.key) for stat in store.list()}
