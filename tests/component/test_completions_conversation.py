"""Conversations of many turns, with tools, over both routes of real simulated servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.completions.generate import generate_chunk
from tasks.completions.record import Outcome
from tasks.prompts.record import Message, Prompt
from tests.support.generation import build_run, load_template, make_prompt
from tests.support.simulator import SimulatedServer, start_simulator

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather of a city",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                    "required": ["city"],
                },
            },
        }
    ]
)
FLAGS = {"sim_time_scale": 0.005, "sim_mean_tokens": 60, "max_running_requests": 8}


@pytest.fixture(scope="module", params=["0.5.12", "0.5.23"])
def fleet(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[SimulatedServer]]]:
    with start_simulator(1, sim_version=request.param, **FLAGS) as servers:
        yield request.param, servers


async def answer(
    folder: Path,
    fleet: tuple[str, list[SimulatedServer]],
    prompts: list[Prompt],
    *,
    max_tokens: int = 2000,
    context_length: int = 4096,
) -> list[Outcome]:
    version, servers = fleet
    run = build_run(
        folder, load_template(), [prompts], max_tokens=max_tokens, context_length=context_length
    )
    async with run.dispatch(servers, version=version) as dispatcher:
        receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    return run.read_outcomes(receipt.key)


def call(name: str) -> Message:
    function = {"name": name, "arguments": {"city": "Oslo"}}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_9", "type": "function", "function": function}],
    }


def ask_weather(row: int, recorded: str = "get_weather") -> Prompt:
    messages = [
        {"role": "user", "content": f"Weather in city {row}?"},
        call(recorded),
        {"role": "tool", "content": '{"t": 3}', "tool_call_id": "call_9"},
        {"role": "assistant", "content": "3 degrees."},
        {"role": "user", "content": "Thank you. And is that cold?"},
    ]
    return make_prompt(load_template(), messages, TOOLS, row=row)


async def test_a_recorded_result_follows_the_models_own_call(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    outcomes = await answer(tmp_path, fleet, [ask_weather(row) for row in range(24)])
    called = [o for o in outcomes if o.completions[0].tool_calls]
    assert len(called) >= 12, "the simulator calls its tools seven times in eight"
    n_whole = 0
    for outcome in called:
        first = outcome.completions[0]
        assert first.finish_reason == "tool_calls"
        assert first.tool_calls[0]["function"]["name"] == "get_weather"
        assert isinstance(first.tool_calls[0]["function"]["arguments"], dict)
        second = outcome.completions[1]
        roles = [message["role"] for message in second.messages]
        assert roles == ["user", "assistant", "tool"]
        assert second.messages[1]["reasoning_content"] == first.reasoning
        assert second.messages[1]["tool_calls"] == first.tool_calls
        assert second.messages[2]["content"] == '{"t": 3}'
        if outcome.status == "completed":
            n_whole += 1
            third = outcome.completions[2]
            assert [m["role"] for m in third.messages][-2:] == ["assistant", "user"]
            assert all("reasoning_content" not in message for message in third.messages)
        elif outcome.status == "partial":
            assert outcome.failure is not None
            assert outcome.failure.kind == "tool_mismatch"
    assert n_whole > 0
    plain = [o for o in outcomes if not o.completions[0].tool_calls and o.status == "completed"]
    for outcome in plain:
        roles = [message["role"] for message in outcome.completions[1].messages]
        assert roles == ["user", "assistant", "user"], "the recorded result was skipped"


async def test_a_call_of_another_name_than_the_recorded_one_ends_the_conversation(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    outcomes = await answer(
        tmp_path, fleet, [ask_weather(row, recorded="get_time") for row in range(16)]
    )
    called = [o for o in outcomes if o.completions[0].tool_calls]
    assert called
    for outcome in called:
        assert outcome.status == "partial"
        assert outcome.failure is not None
        assert (outcome.failure.kind, outcome.failure.retryable) == ("tool_mismatch", False)
        assert len(outcome.completions) == 1


async def test_later_turns_carry_the_exact_ids_of_their_history(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    template = load_template()
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The recorded answer."},
        {"role": "user", "content": "And a lake?"},
    ]
    (outcome,) = await answer(tmp_path, fleet, [make_prompt(template, messages)])
    assert outcome.status == "completed"
    second = outcome.completions[1]
    assert "The recorded answer." not in json.dumps(second.messages)
    ids = json.loads(bytes(second.prompt_token_ids))
    assert ids == template.render(second.messages, None, thinking=True)
    assert second.usage.prompt_tokens == len(ids)


async def test_a_context_that_fills_up_before_a_later_turn_leaves_a_partial_outcome(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    long = "word " * 1800
    messages = [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Nile."},
        {"role": "user", "content": long},
    ]
    prompt = make_prompt(load_template(), messages)
    (outcome,) = await answer(tmp_path, fleet, [prompt], context_length=1024)
    assert outcome.status == "partial"
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.retryable) == ("context_exceeded", False)
    assert len(outcome.completions) == 1


async def test_tools_that_the_server_renders_longer_still_fit_the_context(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    template = load_template()
    bare = json.dumps([{"type": "function", "function": {"name": f"f{i}"}} for i in range(6)])
    prompt = make_prompt(template, [{"role": "user", "content": "Call f1."}], bare)
    # The model's limit leaves no slack: max_tokens is whatever room the prompt leaves.
    outcomes = await answer(tmp_path, fleet, [prompt], max_tokens=8192, context_length=8192)
    assert outcomes[0].failure is None


async def test_an_answer_cut_at_max_tokens_ends_the_conversation_as_truncated(
    tmp_path: Path, fleet: tuple[str, list[SimulatedServer]]
) -> None:
    messages = [
        {"role": "user", "content": "Name a river."},
        {"role": "assistant", "content": "The Nile."},
        {"role": "user", "content": "And a lake?"},
    ]
    (outcome,) = await answer(
        tmp_path, fleet, [make_prompt(load_template(), messages)], max_tokens=5
    )
    assert (outcome.status, outcome.failure) == ("truncated", None)
    (completion,) = outcome.completions
    assert completion.finish_reason == "length"
    assert len(json.loads(bytes(completion.output_token_ids))) == 5
