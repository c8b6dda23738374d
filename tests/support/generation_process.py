"""Generates one chunk in a process of its own, to be killed: see test_completions_kill.

python -m tests.support.generation_process FOLDER N_PROMPTS VERSION URL...
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tasks.completions.config import GenerationConfig
from tasks.completions.dispatch import Dispatcher
from tasks.completions.generate import generate_chunk
from tasks.prompts.record import Prompt
from tests.support.generation import (
    GenerationRun,
    build_run,
    invent_prompts,
    load_template,
    make_endpoint,
    make_prompt,
)

SLOTS = 8


def build_mixed_run(folder: Path, n_prompts: int) -> GenerationRun:
    """Build the run of the process: every fourth conversation has three turns."""
    template = load_template()
    prompts: list[Prompt] = invent_prompts(template, n_prompts)
    for row in range(0, n_prompts, 4):
        messages = [
            {"role": "user", "content": f"Conversation {row}: what is tea?"},
            {"role": "assistant", "content": "A drink."},
            {"role": "user", "content": "And coffee?"},
            {"role": "assistant", "content": "Another drink."},
            {"role": "user", "content": "And milk?"},
        ]
        prompts[row] = make_prompt(template, messages, row=row)
    config = GenerationConfig(backoff_seconds=0.05, return_after_seconds=0.2)
    return build_run(folder, template, [prompts], generation=config)


async def generate(folder: Path, n_prompts: int, version: str, urls: list[str]) -> str:
    """Generate the chunk; return the part's key."""
    run = build_mixed_run(folder, n_prompts)
    endpoints = [
        make_endpoint(
            url,
            slots=SLOTS,
            capability="native" if version == "0.5.12" else "chat",
            version=version,
        )
        for url in urls
    ]
    async with Dispatcher(endpoints, run.generation) as dispatcher:
        receipt = await generate_chunk(run.context(dispatcher), run.plan.chunks[0])
    return receipt.key


if __name__ == "__main__":
    sys.stdout.write(
        asyncio.run(generate(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
    )
