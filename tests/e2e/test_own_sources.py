"""The user's own rows, by configuration alone, through a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.audit import audit_run, copy_prefix
from tests.support.cli import Cli
from tests.support.fixtures import list_etags
from tests.support.s3 import S3Server

ROWS: dict[str, list[dict[str, object]]] = {
    "grade-maths": [
        {"question": f"A crate holds {n} pears. How many are in {n + 2} crates?", "answer": "many"}
        for n in range(20)
    ],
    "two-turns": [
        {
            "question_id": n,
            "category": "writing",
            "turns": [f"Name {n + 2} rivers.", "Now in verse."],
        }
        for n in range(10)
    ],
    "seeds": [
        {
            "id": f"s{n}",
            "instruction": "Add the numbers.",
            "instances": [{"input": f"{n} 4", "output": ""}],
        }
        for n in range(10)
    ],
    "functions": [
        {
            "id": f"f{n}",
            "question": [
                [{"role": "user", "content": f"Give me the area of a square of side {n}."}]
            ],
            "function": [
                {
                    "name": "square.area",
                    "description": "Area of a square.",
                    "parameters": {
                        "type": "dict",
                        "properties": {"side": {"type": "float", "description": "Its side."}},
                        "required": ["side"],
                    },
                }
            ],
        }
        for n in range(10)
    ],
}
CONFIG = """
extends: demo
name: own
store:
  uri: s3://{bucket}/expansion_v1/own
  s3: {{endpoint_url: "{endpoint}", region: us-east-1, addressing_style: path}}
sources:
  grade-maths: {{path: grade-maths.jsonl, mapping: {{prompt: question}}, domain: math}}
  two-turns: {{path: two-turns.jsonl, mapping: {{turns: turns, label: category}}}}
  seeds: {{path: seeds.jsonl, mapping: {{prompt: instruction, input: instances.0.input}}}}
  functions:
    {{path: functions.jsonl, mapping: {{messages: question, tools: function}}, domain: tools}}
extraction: {{chunk_size: 20, canary_size: 12}}
serving: {{n_servers: 2, simulator: {{mean_tokens: 60}}}}
"""


def test_rows_of_four_shapes_reach_s3_whole_and_the_protected_prefix_is_untouched(
    cli: Cli, seaweedfs: S3Server, tmp_path: Path
) -> None:
    before = list_etags(seaweedfs, "completions/")
    for name, rows in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tmp_path / "run.yaml"
    config.write_text(CONFIG.format(bucket=seaweedfs.bucket, endpoint=seaweedfs.endpoint_url))
    keys = {
        "AWS_ACCESS_KEY_ID": seaweedfs.access_key,
        "AWS_SECRET_ACCESS_KEY": seaweedfs.secret_key,
    }
    cli = Cli(cli.home, {**cli.env, **keys})

    planned = cli("plan", str(config), "--json")
    assert planned.code == 0, planned.err
    assert planned.json["n_prompts"] == 50

    told = cli("run", str(config), "--json")
    assert told.code == 0, told.err
    assert "Traceback" not in told.err
    summary = told.json
    assert summary["simulated"] is True
    assert summary["counts"]["n_source_rows"] == 50
    assert summary["counts"]["n_prompts"] == 50
    # Two turns each, and each is a generation of its own.
    assert summary["counts"]["n_samples"] >= 60

    prefix = "expansion_v1/own"
    audit = audit_run(copy_prefix(seaweedfs.client(), seaweedfs.bucket, prefix, tmp_path / "copy"))
    assert audit.manifest["plan_sha"] == planned.json["plan_sha"]
    assert {key.split("/")[0] for key in planned.json["keys"]} <= {
        path.name for path in (tmp_path / "copy").iterdir()
    }
    turns = {outcome["prompt_id"]: len(outcome["completions"]) for outcome in audit.outcomes}
    assert sorted(turns.values()).count(2) == 10
    calls = [t for o in audit.outcomes for c in o["completions"] for t in c["tool_calls"]]
    assert {call["function"]["name"] for call in calls} == {"square.area"}

    uri = f"s3://{seaweedfs.bucket}/{prefix}"
    verified = cli("verify", str(config), "--json")
    assert verified.code == 0, verified.out
    assert verified.json["ok"] is True
    status = cli("status", str(config), "--json").json
    assert (status["stage"], status["uri"]) == ("done", uri)
    assert list_etags(seaweedfs, "completions/") == before
