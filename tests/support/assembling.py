"""A chunk of invented answers to assemble, every sample of it checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.completions.record import Completion, Outcome
from tasks.tokens.assemble import assemble_part, iter_samples
from tasks.tokens.config import TokensConfig
from tasks.tokens.record import Sample, SamplesReceipt
from tests.support.generation import GenerationRun, build_run, load_template, make_prompt
from tests.support.outcomes import ask, complete, publish_outcomes

SETTINGS = TokensConfig(check_share=1.0, tiny_mask_tokens=1)
THOUGHT = "Let me think about it.\n"


def plan_questions(folder: Path, n: int = 6, tools: str | None = None) -> GenerationRun:
    """Plan one chunk of questions."""
    template = load_template()
    prompts = [make_prompt(template, ask(f"What is {i} + 2?"), tools, row=i) for i in range(n)]
    return build_run(folder, template, [prompts])


def answer_all(run: GenerationRun) -> list[Completion]:
    """Answer every question of the chunk."""
    return [
        complete(run, prompt, THOUGHT, f"\n\nIt is {index}, and no more than that.")
        for index, prompt in enumerate(run.prompts[0])
    ]


def assemble(
    run: GenerationRun, outcomes: Sequence[Outcome], config: TokensConfig = SETTINGS
) -> SamplesReceipt:
    """Publish outcomes and assemble them."""
    receipt = publish_outcomes(run, 0, outcomes)
    return assemble_part(run.store, run.plan, run.plan.chunks[0], receipt, run.template, config)


def read_samples(run: GenerationRun, receipt: SamplesReceipt) -> list[Sample]:
    """Read the samples back."""
    return list(iter_samples(run.store, receipt))
