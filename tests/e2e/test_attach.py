"""Servers that others run are probed and used; of unlike ones only those that fit are admitted."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.audit import audit_run
from tests.support.in_process import PREFECT_LEAVES_SOCKETS, RunHere
from tests.support.simulator import start_simulator

pytestmark = PREFECT_LEAVES_SOCKETS

CONFIG = """
name: attach
store: {{uri: store}}
model: {{path: "builtin:simulator", served_name: shared, context_length: 4096}}
sampling: {{max_tokens: 1024}}
sources:
  mine: {{path: rows.jsonl, mapping: {{turns: turns}}}}
extraction: {{chunk_size: 20, canary_size: 10}}
serving: {{mode: attach, urls: [{urls}], ready_timeout_seconds: 60}}
"""
FLAGS = {
    "served_model_name": "shared",
    "reasoning_parser": "qwen3",
    "tool_call_parser": "qwen3_coder",
    "max_running_requests": 8,
    "sim_time_scale": 0.01,
    "sim_mean_tokens": 60,
}


def test_old_and_new_servers_share_a_run_and_a_stranger_among_them_is_left_out(
    run_here: RunHere, tmp_path: Path
) -> None:
    rows = [{"turns": [f"Name {n + 2} birds.", "Which of them sings?"]} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (
        start_simulator(1, context_length=4096, sim_version="0.5.12", **FLAGS) as old,
        start_simulator(1, context_length=8192, sim_version="0.5.23", **FLAGS) as new,
        start_simulator(1, **{**FLAGS, "served_model_name": "another"}) as stranger,
    ):
        urls = [servers[0].base_url for servers in (old, new, stranger)]
        config = tmp_path / "run.yaml"
        config.write_text(CONFIG.format(urls=", ".join(f'"{url}"' for url in urls)))
        summary = run_here(config)
    assert summary["simulated"] is True
    audit = audit_run(tmp_path / "store")
    assert audit.statuses["completed"] + audit.statuses["truncated"] == 40
    turns = [turn for outcome in audit.outcomes for turn in outcome["completions"]]
    routes = {(turn["endpoint"], turn["token_source"]) for turn in turns}
    assert routes == {(urls[0], "native"), (urls[1], "chat")}
    for outcome in audit.outcomes:
        # Every turn of a conversation is had on one route.
        assert len({turn["token_source"] for turn in outcome["completions"]}) == 1
