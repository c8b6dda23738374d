"""Runs that fail or die at one step each, and the rerun after each: a process that forks them.

    python -m tests.support.failing_runs SPEC.json

Enters: {"folder", "urls", "store": a StoreConfig or null, "access_key", "secret_key", "every",
"only": steps or null}. Leaves: one JSON line for a run without a failpoint (with the
steps that it took), then one for each failpoint and its rerun. Every run is a process of its own,
forked before any thread is started, with the imports and the tokenizer in it already. A few
failpoints are tried side by side.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import SecretStr

import tasks.storage.files
import tasks.storage.s3  # noqa: F401
from tasks.errors import DraftmillError
from tasks.storage.config import StoreConfig
from tasks.storage.s3_session import make_session
from tasks.storage.store import ArtifactStore, S3Credentials, open_store
from tests.support.failpoints import Failpoint, list_failpoints, watch
from tests.support.generation import load_template
from tests.support.road import invent_conversations, plan_road, travel

_N_LANES = 3


def main(spec: dict[str, Any]) -> None:
    """Run without a failpoint, then once for each one chosen, each in a place of its own."""
    load_template()
    invent_conversations()
    make_session("us-east-1", None).client("s3")  # reads what botocore knows of S3
    for name in ("pandas", "pyarrow.pandas_compat"):  # pyarrow does so at the first table
        import_module(name)
    # What is here is shared by every child, and looked through by no collection of theirs.
    gc.freeze()
    clean = run_forked(partial(live, spec, "clean", None))
    again = run_forked(partial(live, spec, "clean", None))
    tell({"failpoint": None, "first": clean, "rerun": again})
    steps = {
        name: n
        for name, n in clean["steps"].items()
        if spec["only"] is None or name in spec["only"]
    }
    points = list(enumerate(list_failpoints(Counter(steps))[:: spec["every"]]))
    # Runs wait more than they compute: for a server's answer, for the disk, for a core.
    lanes = [fork(partial(try_points, spec, points[lane::_N_LANES])) for lane in range(_N_LANES)]
    for lane in lanes:
        told = lane.wait()
        assert told["code"] == 0, "a lane died"
        for line in told["lines"]:
            tell(line)


def try_points(spec: dict[str, Any], points: list[tuple[int, Failpoint]]) -> dict[str, Any]:
    """Run and rerun with each of these failpoints, one after the other."""
    lines = []
    for index, point in points:
        place = f"run-{index:03d}"
        first = run_forked(partial(live, spec, place, point))
        rerun = run_forked(partial(live, spec, place, None))
        shutil.rmtree(Path(spec["folder"]) / place)
        lines.append({"failpoint": asdict(point), "first": first, "rerun": rerun})
    return {"lines": lines}


def live(spec: dict[str, Any], place: str, armed: Failpoint | None) -> dict[str, Any]:
    """Go the whole road in one place; tell the result, or the error that ended it."""
    folder = Path(spec["folder"]) / place
    store = open_place(spec, folder, place)
    run = plan_road(folder, store)
    told: dict[str, Any] = {"error": None}
    with watch(folder, armed) as steps:
        try:
            told["result"] = asyncio.run(travel(run, spec["urls"]))
        except (DraftmillError, OSError) as error:
            told["error"] = f"{type(error).__name__}: {error}"
        told["steps"] = dict(steps)
    told["reached"] = armed is not None and steps[armed.step] >= armed.nth
    return told


def open_place(spec: dict[str, Any], folder: Path, place: str) -> ArtifactStore:
    """Open the store of one place: a folder in it, or a prefix of its name in the bucket."""
    if spec["store"] is None:
        folder.mkdir(parents=True, exist_ok=True)
        return open_store(StoreConfig(uri=f"file://{folder}/store", protected=()))
    config = StoreConfig.model_validate(spec["store"])
    config = config.model_copy(update={"uri": f"{config.uri}/{place}"})
    folder.mkdir(parents=True, exist_ok=True)
    return open_store(config, S3Credentials(spec["access_key"], SecretStr(spec["secret_key"])))


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process at work."""

    pid: int
    reading: int

    def wait(self) -> dict[str, Any]:
        """Give what it told, and its exit code, or the signal that ended it."""
        with os.fdopen(self.reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        told: dict[str, Any] = json.loads(text) if text else {}
        return {**told, "code": os.waitstatus_to_exitcode(status)}


def fork(work: Callable[[], dict[str, Any]]) -> Child:
    """Begin the work in a child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(work(), pipe)
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    return Child(pid, reading)


def run_forked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do the work in a child; give what it tells, and the signal that ended it, if one did."""
    return fork(work).wait()


def tell(line: dict[str, Any]) -> None:
    """Print one line of the report."""
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
