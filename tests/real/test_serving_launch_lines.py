"""Every launch line that we produce passes the real parser; what it refuses, we refuse first."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flows.configuration.load import list_profiles, read_values
from tasks.chat.config import ModelConfig
from tasks.errors import ConfigError
from tasks.serving.command import build_commands
from tasks.serving.config import ServingConfig
from tasks.serving.launchable import LaunchFacts
from tasks.serving.tuner import propose_candidates
from tests.support.sglang_cpu import check_lines
from tests.support.sglang_cpu.environment import build_environment

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CARDS = {"rtx-pro-6000-8x": (12, 0), "b200-7x": (10, 0)}
HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 4096,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "full_attention_interval": 4,
    "num_experts": 0,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    """A hybrid model of which only the config is there: nothing is loaded."""
    folder = tmp_path_factory.mktemp("hybrid")
    (folder / "config.json").write_text(json.dumps(HYBRID))
    return ModelConfig(path=str(folder), served_name="hybrid", dtype="bfloat16")


def line_of(config: ServingConfig, model: ModelConfig, capability: tuple[int, int]) -> list[str]:
    facts = LaunchFacts(capability=capability, hybrid=True, nvlink=True)
    ports = [30000 + number for number in range(config.n_servers)]
    command = build_commands(config, model, ports, facts=facts)[0]
    return list(command.argv[3:])


def ask_parser(lines: list[list[str]], capability: tuple[int, int]) -> list[str]:
    asked = {"lines": lines, "capability": capability[0]}
    done = subprocess.run(
        [str(build_environment()), str(Path(check_lines.__file__))],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def serving_of(profile: str) -> dict[str, Any]:
    return dict(read_values(profile)[0]["serving"])


def test_every_line_of_the_shipped_profiles_passes_the_real_parser(model: ModelConfig) -> None:
    launching = {name for name in list_profiles() if serving_of(name).get("engine") == "sglang"}
    assert launching == CARDS.keys()
    for name, capability in CARDS.items():
        config = ServingConfig.model_validate(serving_of(name))
        facts = LaunchFacts(capability=capability, hybrid=True, nvlink=True)
        candidates = [each.serving for each in propose_candidates(config, facts)]
        assert len(candidates) >= 4
        split = config.model_copy(update={"n_servers": 2, "tp_size": 2})
        lines = [line_of(each, model, capability) for each in (config, split, *candidates)]
        answers = ask_parser(lines, capability)
        assert answers == [""] * len(lines), list(zip(lines, answers, strict=True))


def test_what_the_real_parser_refuses_is_refused_by_us_first(model: ModelConfig) -> None:
    base = serving_of("rtx-pro-6000-8x") | {"n_servers": 1}
    speculative = {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}
    choices = itertools.product(
        (None, "auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
        (None, speculative),
        (False, True),
        ((), ("--page-size", "48"), ("--page-size", "64")),
    )
    accepted, refused = [], []
    for strategy, drafts, no_radix, flags in choices:
        values = base | {
            "mamba_strategy": strategy,
            "speculative": drafts,
            "disable_radix_cache": no_radix,
            "extra_flags": flags,
        }
        config = ServingConfig.model_validate(values)
        try:
            accepted.append(line_of(config, model, (12, 0)))
        except ConfigError:
            refused.append(values)
    assert len(refused) > 10
    assert len(accepted) > 10
    answers = ask_parser(accepted, (12, 0))
    taken = {json.dumps(line): answer for line, answer in zip(accepted, answers, strict=True)}
    assert {line: answer for line, answer in taken.items() if answer} == {}
