"""The demo: the whole road on invented rows and simulated servers, in a folder of its own."""

from __future__ import annotations

import json
import os
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from deployments.samples.base import write_base
from deployments.samples.make import write_samples
from flows.command_line.launch import launch_expansion
from flows.configuration.load import load_config
from flows.process.speak import ERR
from tasks.errors import UserError

PLACE = Path(".draftmill")


def run_demo(out: Path | None) -> dict[str, Any]:
    """Write sample rows and a small base dataset, then run the main job on them.

    Args:
        out: Folder for the input and the store; default: `.draftmill/demo/<time>`.

    Raises:
        UserError: A file stands where the folder should.
        DraftmillError: Why the run ended early.
    """
    folder = (out or PLACE / "demo" / datetime.now().strftime("%Y%m%d-%H%M%S")).resolve()
    if any(place.is_file() for place in (folder, *folder.parents)):
        raise UserError(
            "a file stands where a folder is needed",
            where=str(folder),
            remedy="Give --out a folder.",
        )
    # One home for all demos, beside them: its database is migrated once.
    os.environ.setdefault("DRAFTMILL_HOME", str((PLACE / "home").resolve()))
    ERR.print("The answers of this demo are simulated. Everything lands in", markup=False)
    ERR.print(f"  {folder}", markup=False, soft_wrap=True)
    files = write_samples(folder / "input")
    tokenizer = Path(str(resources.files("infra.simulator") / "model" / "tokenizer.json"))
    base = write_base(folder / "input" / "base.jsonl", tokenizer)
    sources = {key: {"use": key, "path": str(path)} for key, path in files.items()}
    values = {
        "sources": sources,
        "base": {"path": str(base), "domain": "domain", "source": "source"},
        "store.uri": (folder / "store").as_uri(),
    }
    loaded = load_config("demo", [f"{key}={json.dumps(value)}" for key, value in values.items()])
    return launch_expansion(loaded.config)
