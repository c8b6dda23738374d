"""Answers of real simulated servers become samples whose every id agrees with its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.completions.config import GatesConfig
from tasks.completions.generate import generate_chunk
from tasks.prompts.record import Prompt
from tasks.tokens.assemble import assemble_part, iter_samples
from tasks.tokens.config import TokensConfig
from tests.support.generation import build_run, invent_prompts, load_template, make_prompt
from tests.support.outcomes import ask
from tests.support.simulator import start_simulator

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Tell the weather of a city.",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"],
                },
            },
        }
    ]
)
QUIET = GatesConfig(
    accept=("empty_answer", "empty_thinking", "truncation", "repetition", "tiny_mask", "duplicate")
)


def invent_mixed(thinking: bool) -> list[Prompt]:
    """One turn, two turns, Chinese, code, and a loop over a tool."""
    template = load_template()
    conversations = [
        ([*ask("One?"), {"role": "assistant", "content": "Old."}, *ask("Two?")], None),
        (ask("请用中文介绍一下素数,并且说明为什么一不是素数。"), None),
        (ask("Write add(a, b) in python:\n```python\n```"), None),
        ([{"role": "system", "content": "Be brief."}, *ask("What is $\\frac{1}{2}$?")], None),
        *[
            (
                [
                    *ask(f"Weather in city {i}?"),
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": {"city": "x"}},
                            }
                        ],
                    },
                    {"role": "tool", "content": '{"t": 3}'},
                ],
                TOOLS,
            )
            for i in range(6)
        ],
    ]
    mixed = [
        make_prompt(template, messages, tools, row=100 + i, thinking=thinking)
        for i, (messages, tools) in enumerate(conversations)
    ]
    return [*invent_prompts(template, 10, thinking=thinking), *mixed]


@pytest.mark.parametrize("version", ["0.5.12", "0.5.23"])
@pytest.mark.parametrize(("thinking", "max_tokens"), [(True, 2000), (False, 2000), (True, 60)])
async def test_every_generation_agrees_with_its_text_on_either_route(
    tmp_path: Path, version: str, thinking: bool, max_tokens: int
) -> None:
    template = load_template()
    run = build_run(
        tmp_path,
        template,
        [invent_mixed(thinking)],
        gates=QUIET,
        max_tokens=max_tokens,
        thinking=thinking,
    )
    with start_simulator(
        1, sim_version=version, sim_time_scale=0.005, sim_mean_tokens=90
    ) as servers:
        async with run.dispatch(servers, version=version) as dispatcher:
            part = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    config = TokensConfig(check_share=1.0)
    chunk = run.plan.chunks[0]
    receipt = assemble_part(run.store, run.plan, chunk, part, template, config)
    assert receipt.n_checked == receipt.n_samples == part.footer.n_generations
    if max_tokens > 60:
        assert receipt.n_samples > len(run.prompts[0]), "some conversations have several turns"
    assert receipt.n_supervised_tokens == part.footer.n_output_tokens
    assert bool(receipt.finish_reasons.get("length")) == (max_tokens == 60)
    for sample in iter_samples(run.store, receipt):
        n_supervised = int(sample.loss_mask.sum())
        assert sample.loss_mask[-n_supervised:].all()
        if sample.finish_reason != "length":
            assert int(sample.input_ids[-1]) in template.end_token_ids
