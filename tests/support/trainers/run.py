"""A run with one of each kind of row that a trainer could misread."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec.structs import replace

from tasks.chat.template import ChatTemplate
from tasks.completions.record import Outcome
from tests.support.generation import GenerationRun, build_run, make_prompt
from tests.support.outcomes import ask, complete, conclude, to_raw

CALL = {"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}
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
                },
            },
        }
    ]
)
_CALL_TEXT = (
    "\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)


def plan_every_kind(folder: Path, template: ChatTemplate) -> tuple[GenerationRun, list[Outcome]]:
    """Plan one chunk: plain rows, a conversation of two turns, a tool loop, one cut in thought."""
    prompts = [
        make_prompt(template, ask(f"What is {i} + 2, written in words?"), row=i) for i in range(5)
    ]
    prompts.append(make_prompt(template, ask("请介绍一下素数。🌊"), row=5))
    tool = make_prompt(template, ask("Weather in Oslo?"), TOOLS, row=6)
    cut = make_prompt(template, ask("Think for a long while."), row=7)
    run = build_run(folder, template, [[*prompts, tool, cut]])
    outcomes = [
        conclude(complete(run, p, f"\nLet me add {i}.\n", f"\n\nIt is {i} and two. "))
        for i, p in enumerate(prompts)
    ]
    first = complete(run, prompts[1], "One.", "\n\nFirst, as it is.")
    history = [
        *prompts[1].messages,
        {"role": "assistant", "content": "First, as it is."},
        *ask("And then?"),
    ]
    second = replace(
        complete(run, replace(prompts[1], messages=history), "Two.", "\n\nSecond, as it is."),
        generation=1,
    )
    outcomes[1] = conclude(first, second)
    called = complete(run, tool, "I ask.", _CALL_TEXT, finish_reason="stop")
    calls = [{"id": "call_0", "type": "function", "function": CALL}]
    called = replace(called, content="\n\n", tool_calls=calls, finish_reason="tool_calls")
    loop = [
        *tool.messages,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I ask.",
            "tool_calls": calls,
        },
        {"role": "tool", "content": '{"t": 3}'},
    ]
    told = replace(
        complete(run, replace(tool, messages=loop), "It is 3.", "\n\nThree degrees in Oslo."),
        generation=1,
    )
    outcomes.append(conclude(called, told))
    thought = "I think, and think, and"
    outcomes.append(
        conclude(
            complete(
                run,
                cut,
                thought,
                "",
                finish_reason="length",
                output_token_ids=to_raw(template.encode(thought)),
            ),
            status="truncated",
        )
    )
    return run, outcomes
