"""A small real run whose rows, source and model name are hostile.

Enters: a folder, and the command line. Leaves: the run's summary. It exists so that the report and
Prefect's pages are looked at as strangers would have them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.cli import Cli

# As facts of the web have them; what a mail client or a terminal would act on as well.
ROWS = (
    "<script>document.title = 'taken'; alert(1)</script>",
    '"><img src=http://evil.example/x.png onerror=alert(1)>',
    "![x](http://evil.example/x.png) [press here](javascript:alert(1))",
    "\x1b[31mred\x1b[0m\r\nSet-Cookie: a=b",
    "abc\u202edlrow\u2066\u200f",
)
SOURCE = "<img src=x onerror=alert(1)>"
MODEL = "<script>alert(1)</script>"
N_ROWS = 60
_CONFIG = f"""
extends: demo
name: hostile
store: {{uri: store}}
model: {{served_name: "{MODEL}"}}
sources:
  "{SOURCE}": {{path: rows.jsonl, mapping: {{prompt: question}}}}
extraction: {{chunk_size: 40, canary_size: 24}}
serving: {{n_servers: 1, simulator: {{time_scale: 0.01, mean_tokens: 60}}}}
"""


def write_config(folder: Path) -> Path:
    """Write the rows and their configuration."""
    rows = [{"question": f"{ROWS[n % len(ROWS)]} Describe island {n}."} for n in range(N_ROWS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = folder / "run.yaml"
    config.write_text(_CONFIG)
    return config


def run_hostile(cli: Cli, folder: Path) -> dict[str, Any]:
    """Run it to its end; give the summary."""
    told = cli("run", str(write_config(folder)), "--json")
    assert told.code == 0, told.out + told.err
    return told.json
