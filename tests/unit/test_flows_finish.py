"""The summary of a run points at what is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from flows.stages.finish import summarise
from flows.stages.opened import Run
from tests.support.finished import finish_run


def test_a_manifest_written_again_points_at_the_shards_that_it_names(tmp_path: Path) -> None:
    finished = finish_run(tmp_path)
    renewed = finished.manifest.model_copy(update={"revision": 1})
    run = SimpleNamespace(config=SimpleNamespace(name="mine"), store=finished.run.store)
    told = summarise(cast("Run", run), renewed)
    assert told["dataset"] == f"{finished.prefix}/dataset/r0000/"
    assert told["manifest"].endswith("r0001.json")
