"""What a run began with is held against what it finds when it is taken up."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.configuration.load import load_config
from flows.stages.opened import check_base
from tasks.errors import BaseDatasetError
from tasks.tokens.base import hash_base
from tests.support.merging import invent_rows, write_base

SOURCE = "sources.mine={path: rows.jsonl, mapping: {prompt: q}}"


def test_a_base_that_is_gone_or_another_one_is_found_before_a_server_starts(
    tmp_path: Path,
) -> None:
    base = write_base(tmp_path, invent_rows())
    config = load_config("demo", [f"store.uri={tmp_path / 'store'}", SOURCE]).config
    check_base(config.model_copy(update={"base": None}), None)
    based = config.model_copy(update={"base": base})
    frozen = hash_base(base)
    check_base(based, frozen)
    path = Path(base.path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(BaseDatasetError, match="has changed since the run began"):
        check_base(based, frozen)
    path.unlink()
    with pytest.raises(BaseDatasetError):
        check_base(based, frozen)
    path.write_bytes(whole)
    check_base(based, frozen)
