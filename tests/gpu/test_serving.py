"""On a card: memory is seen by NVML, held while a server lives, and free before it starts again.

DRAFTMILL_SGLANG_PYTHON names the Python of a servers' environment; with it the launch lines are
held against that sglang's own parser, on the card as it is.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.configuration.load import list_profiles, read_values
from tasks.chat.config import ModelConfig
from tasks.serving.cards import await_memory, read_cards
from tasks.serving.command import build_commands
from tasks.serving.config import ServingConfig
from tasks.serving.startup import read_launch_facts
from tests.support.fleet import fleet_folder, read, stub_config, up, wait_until

CARDS = read_cards([0])
PYTHON = os.environ.get("DRAFTMILL_SGLANG_PYTHON")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CARDS is None, reason="NVML tells of no GPU on this machine"),
]
_HELD_MIB = 1800
_CHECK = "import sys; from sglang.srt.server_args import prepare_server_args; "
_CHECK += "prepare_server_args(sys.argv[1:])"


@pytest.fixture
def fleet_dir(tmp_path: Path) -> Iterator[Path]:
    with fleet_folder(tmp_path / "fleet") as folder:
        yield folder


def used_mib() -> int:
    cards = read_cards([0])
    assert cards is not None
    return cards[0].memory_used_mib


def test_memory_of_a_killed_server_is_seen_free_before_it_is_started_again(
    fleet_dir: Path, tmp_path: Path
) -> None:
    before = read_cards([0])
    assert before is not None
    up(fleet_dir, stub_config(tmp_path, "gpu", gpus=(0,), max_restarts=2))
    assert used_mib() > before[0].memory_used_mib + _HELD_MIB
    victim = read(fleet_dir).servers[0]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    assert asyncio.run(await_memory(before, 60, asyncio.Event())) == ""
    wait_until(lambda: read(fleet_dir).servers[0].status == "ready")
    assert read(fleet_dir).servers[0].n_restarts == 1
    assert used_mib() > before[0].memory_used_mib + _HELD_MIB


@pytest.mark.skipif(PYTHON is None, reason="DRAFTMILL_SGLANG_PYTHON names no environment")
def test_launch_lines_for_this_card_pass_the_parser_of_the_servers_environment(
    tmp_path: Path,
) -> None:
    assert PYTHON is not None
    model = ModelConfig(path=str(tmp_path), dtype="bfloat16")
    plain = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}
    plain |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(plain))
    for profile in list_profiles():
        serving = read_values(profile)[0]["serving"]
        if serving.get("engine") != "sglang":
            continue
        fields = {"n_servers": 1, "attention_backend": None, "mamba_strategy": None}
        config = ServingConfig.model_validate(serving | fields | {"speculative": None})
        facts = read_launch_facts(config, model)
        [command] = build_commands(config, model, [30000], facts=facts)
        line = [PYTHON, "-c", _CHECK, *command.argv[3:]]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
